#include "image/mounts.h"

#include <cerrno>
#include <filesystem>
#include <sys/stat.h>
#include <vector>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"

namespace lockstep::image {

namespace {

std::vector<std::string> split_at_colons(const std::string& text) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t colon; (colon = text.find(':', begin)) != std::string::npos; begin = colon + 1) {
    parts.push_back(text.substr(begin, colon - begin));
  }
  parts.push_back(text.substr(begin));
  return parts;
}

void check_source(const std::string& text, const std::string& source) {
  struct stat info {};
  if (::stat(source.c_str(), &info) != 0) {
    throw UsageError("--mount {}: the source {}: {}", text, source, base::errno_text(errno));
  }
  if (!S_ISDIR(info.st_mode) && !S_ISREG(info.st_mode)) {
    throw UsageError("--mount {}: the source {} is neither a folder nor a file", text, source);
  }
}

std::string checked_target(const std::string& text, const std::string& target) {
  if (target.empty()) {
    throw UsageError("--mount {}: the target, after the colon, is missing; SRC:DST", text);
  }
  const std::filesystem::path path(target);
  bool climbs = false;
  for (const auto& part : path) {
    climbs = climbs || part == "..";
  }
  if (!path.is_absolute() || climbs) {
    throw UsageError("--mount {}: the target {} is not an absolute path in the image, like /data",
                     text, target);
  }
  std::string normal = path.lexically_normal().string();
  while (normal.size() > 1 && normal.back() == '/') {
    normal.pop_back();
  }
  if (normal.find_first_not_of('/') == std::string::npos) {
    throw UsageError("--mount {}: the target / would hide the image", text);
  }
  return normal;
}

}  // namespace

Mount parse_mount_of_later(const std::string& text) {
  const std::vector<std::string> parts = split_at_colons(text);
  if (parts.size() < 2) {
    throw UsageError("--mount {} names no target; write SRC:DST, SRC:DST:ro or SRC:DST:rw", text);
  }
  if (parts.size() > 3 || (parts.size() == 3 && parts[2] != "ro" && parts[2] != "rw")) {
    throw UsageError(
        "--mount {}: what follows SRC:DST is ro or rw, and a path can have no colon in it", text);
  }
  if (parts[0].empty()) {
    throw UsageError("--mount {}: the source, before the colon, is missing", text);
  }
  return {.source = std::filesystem::absolute(parts[0]).lexically_normal().string(),
          .target = checked_target(text, parts[1]),
          .read_only = parts.size() == 3 && parts[2] == "ro"};
}

Mount parse_mount(const std::string& text) {
  Mount mount = parse_mount_of_later(text);
  check_source(text, text.substr(0, text.find(':')));
  return mount;
}

std::string to_text(const Mount& mount) {
  return mount.source + ":" + mount.target + (mount.read_only ? ":ro" : ":rw");
}

}  // namespace lockstep::image
