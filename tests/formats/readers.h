#pragma once

// Every reader under one interface, for the tests that give all of them bad files.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "formats/hostile.h"

namespace lockstep::test {

struct Reader {
  std::string_view name;  // its heading in docs/formats/hostile.md
  // Reads all that the reader knows of the bytes, weights and checksums too. Throws FormatError; an
  // accepted file whose tensors are not inside it is an InternalError.
  void (*read)(std::string_view bytes);
  std::vector<HostileFile> (*hostile_files)();
  std::vector<const char*> goldens;  // good files
};

const std::vector<Reader>& readers();
const Reader& reader(std::string_view name);

// Good files of a reader, to begin a search for bad ones from.
std::vector<std::string> seeds(const Reader& reader);

// What a fuzzer calls: returns 0, whatever the bytes are. FormatError is caught; anything else, a
// crash or a hang is a finding.
int fuzz(std::string_view reader_name, const uint8_t* data, size_t size);

}  // namespace lockstep::test
