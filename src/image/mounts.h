#pragma once

// --mount SRC:DST[:ro|rw]: what a job in an image sees of the host.

#include <string>

namespace lockstep::image {

struct Mount {
  std::string source;      // REQUIRED: on the host, absolute
  std::string target;      // REQUIRED: in the image, absolute, without "." and ".."; never "/"
  bool read_only = false;  // also for what is mounted below the source
};

// "SRC:DST", "SRC:DST:ro" or "SRC:DST:rw". SRC must exist on this host; a relative one counts from
// the current folder. Throws UsageError that says which side is wrong.
Mount parse_mount(const std::string& text);

// The same, but SRC need not exist yet: staging may bring it, and entering the image looks again.
Mount parse_mount_of_later(const std::string& text);

// "SRC:DST:ro".
std::string to_text(const Mount& mount);

}  // namespace lockstep::image
