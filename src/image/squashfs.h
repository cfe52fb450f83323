#pragma once

// The first 96 bytes of a squashfs image: what it is, and whether all of it is there.

#include <cstdint>
#include <string>

namespace lockstep::image {

struct SquashfsInfo {
  uint64_t file_bytes = 0;   // of the file
  uint64_t bytes_used = 0;   // of the file system in it, <= file_bytes; the rest is padding
  uint32_t block_bytes = 0;  // what is compressed at once
  uint32_t num_inodes = 0;   // files, folders, links
  std::string compression;   // "gzip", "lzma", "lzo", "xz", "lz4" or "zstd"
};

// Reads the superblock without trusting it. Throws IoError for a file that is not there or
// cannot be read, and FormatError for one that is empty, truncated, damaged, of another format
// (which is named if it is a common one) or of another version of squashfs.
SquashfsInfo read_squashfs(const std::string& path);

}  // namespace lockstep::image
