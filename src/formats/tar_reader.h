#pragma once

// The members of a tar file, for the containers that torch wrote before 0.1.10. Every header's
// checksum is compared; of the data a tar has none.

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

// Regular files with plain names, each once, at most 1000, up to the end mark, and nothing but
// zeros behind it. Extended headers may say who and when, not what: one that changes a name or a
// size is refused. Throws FormatError.
std::vector<TarMember> read_tar(const ByteSource& source);

}  // namespace lockstep
