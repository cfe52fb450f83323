#pragma once

// Files that exist only in a test.

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/byte_source.h"
#include "support/temp_folder.h"

namespace lockstep::test {

// Reads `bytes`, which the caller keeps alive, as a file named "x".
base::MemorySource source_of(std::string_view bytes);

std::string file_text(const std::string& path);
std::string golden(const std::string& name);

// A zip of stored records, name and content, with right CRCs.
std::string zip_of(const std::vector<std::pair<std::string, std::string>>& records);

// A tar of regular files, name and content, with right checksums.
std::string tar_of(const std::vector<std::pair<std::string, std::string>>& members);
std::string tar_header(const std::string& name, uint64_t size, char type = '0');

// `bytes` with one bit of the first byte of `place` flipped; a zip whose directory says "deflated".
std::string flipped(std::string bytes, std::string_view place);
std::string deflated(std::string zip);

// As deflate packs them, and an .npz of one array "a" that is packed so, of which the directory
// says what `content` is.
std::string deflate_of(const std::string& bytes);
std::string deflated_npz(const std::string& deflated_bytes, const std::string& content);

// The message of the FormatError that `action` throws; "" if it throws none. Others pass through.
std::string refusal(const std::function<void()>& action);

// Calls `check` with `bytes` cut at every hundredth of its length, and at the last ten bytes.
void for_each_cut(std::string_view bytes, const std::function<void(std::string_view)>& check);

// Calls `check` with each bit of bytes [begin, end) flipped in turn.
void for_each_flip(std::string bytes, size_t begin, size_t end,
                   const std::function<void(std::string_view, size_t byte)>& check);

}  // namespace lockstep::test
