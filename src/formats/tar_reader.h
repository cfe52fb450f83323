#pragma once

// The members of a tar file: the containers that torch wrote before 0.1.10, shards of pictures.
// Every header's checksum is compared; of the data a tar has none.

#include <cstdint>
#include <string>
#include <vector>

#include "base/byte_source.h"

namespace lockstep {

struct TarMember {
  std::string name;
  uint64_t offset_bytes = 0;  // of the data
  uint64_t size_bytes = 0;
};

struct TarOptions {
  size_t max_members = 1000;
  bool allow_folders = false;  // true: names may be paths; folders themselves are left out
};

// Regular files with plain names, each once, up to the end mark, and nothing but zeros behind it.
// Extended headers may say who and when, not what: one that changes a name or a size is refused.
// Throws FormatError.
std::vector<TarMember> read_tar(const ByteSource& source, const TarOptions& options = {});

}  // namespace lockstep
