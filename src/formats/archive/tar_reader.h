#pragma once

// The members of a tar file: the containers that torch wrote before 0.1.10, shards of pictures.
// Every header's checksum is compared; of the data a tar has none.

#include <cstdint>
#include <string>
#include <vector>

#include "base/byte_source.h"

namespace lockstep::formats {

struct TarMember {
  std::string name;
  uint64_t offset_bytes = 0;  // of the data
  uint64_t size_bytes = 0;
};

struct TarOptions {
  size_t max_members = 1000;
  // false: what torch wrote. A name that is a path, a member that is no regular file and an
  // extended header that says more than who and when are refused.
  // true: what any tar may hold. Names may be paths and may come from extended headers (PAX's
  // "path" and "size", GNU's long names); folders, links and devices are left out.
  bool allow_any = false;
};

// The members up to the end mark. Throws FormatError unless they are regular files, each name is
// there once, and only zeros follow the mark.
std::vector<TarMember> read_tar(const base::ByteSource& source, const TarOptions& options = {});

}  // namespace lockstep::formats
