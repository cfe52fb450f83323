#pragma once

// What a user may write where a file or a folder is meant.

#include <string>

namespace lockstep::storage {

struct Location {
  bool is_s3 = false;
  std::string bucket;  // of S3
  std::string path;    // of a file or folder; of S3 the key or prefix, without a slash at its ends
};

// "s3://bucket/key", "file:///path", "path". Throws UsageError for another scheme, a bucket that
// cannot be one, or nothing at all.
Location parse_location(const std::string& text);

// Throws UsageError unless `path` stays inside the place that it is relative to: not empty, not
// absolute, no empty, "." or ".." part. `place` is for the message.
void check_relative(const std::string& path, const std::string& place);

}  // namespace lockstep::storage
