#include "storage/location.h"

#include <algorithm>

#include <lockstep/base/error.h>

namespace lockstep::storage {

namespace {

constexpr size_t kMinBucketName = 3;  // by the rules of S3
constexpr size_t kMaxBucketName = 63;

bool is_bucket(const std::string& name) {
  return name.size() >= kMinBucketName && name.size() <= kMaxBucketName &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '-' || c == '_';
         });
}

Location parse_s3(const std::string& text, const std::string& rest) {
  const size_t slash = std::min(rest.find('/'), rest.size());
  Location location{.is_s3 = true, .bucket = rest.substr(0, slash), .path = {}};
  if (!is_bucket(location.bucket)) {
    throw UsageError(
        "{}: '{}' cannot be the name of a bucket ({} to {} letters, digits, '.', '-'); write "
        "s3://bucket/key",
        text, location.bucket, kMinBucketName, kMaxBucketName);
  }
  const size_t first = rest.find_first_not_of('/', slash);
  if (first != std::string::npos) {
    location.path = rest.substr(first, rest.find_last_not_of('/') + 1 - first);
  }
  return location;
}

}  // namespace

Location parse_location(const std::string& text) {
  if (text.empty()) {
    throw UsageError("a file or folder is missing: '' is none");
  }
  const size_t colon = text.find("://");
  if (colon == std::string::npos) {
    return {.is_s3 = false, .bucket = {}, .path = text};
  }
  const std::string scheme = text.substr(0, colon);
  const std::string rest = text.substr(colon + 3);
  if (scheme == "s3") {
    return parse_s3(text, rest);
  }
  if (scheme != "file") {
    throw UsageError("{}: '{}://' is not known; write a path, file:///path or s3://bucket/key",
                     text, scheme);
  }
  if (!rest.starts_with('/')) {
    throw UsageError("{}: the path after file:// must begin with a slash: file:///path", text);
  }
  return {.is_s3 = false, .bucket = {}, .path = rest};
}

void check_relative(const std::string& path, const std::string& place) {
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || part.find('\0') != std::string::npos) {
      throw UsageError("{}: '{}' is no path inside it: it has the part '{}'", place, path, part);
    }
    begin = end + 1;
  }
}

}  // namespace lockstep::storage
