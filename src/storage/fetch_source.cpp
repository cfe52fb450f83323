#include "storage/fetch_source.h"

#include <filesystem>
#include <set>
#include <tuple>

#include <lockstep/base/error.h>

#include "base/sidecar.h"
#include "storage/location.h"

namespace lockstep::storage {

namespace {

namespace fs = std::filesystem;

std::string without_slashes(std::string text) {
  while (text.size() > 1 && text.ends_with('/')) {
    text.pop_back();
  }
  return text;
}

// "a/b/c" -> "a/b" and "c"; without a slash the folder is `otherwise`.
std::pair<std::string, std::string> split_last(const std::string& path,
                                               const std::string& otherwise) {
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) {
    return {otherwise, path};
  }
  return {slash == 0 ? "/" : path.substr(0, slash), path.substr(slash + 1)};
}

std::string mended(const fs::path& path) {
  return fs::absolute(path).lexically_normal().string();
}

// Returns nothing unless `location` is one file.
std::optional<FetchSource> source_file(const std::string& location,
                                       const std::string& destination) {
  const Location place = parse_location(location);
  if (place.is_s3 && place.path.empty()) {
    return std::nullopt;
  }
  FetchSource source{.storage = {}, .location = location, .folder = {}, .items = {}};
  std::string name;
  if (place.is_s3) {
    const auto [folder, last] = split_last(place.path, "");
    source.storage = open_storage(fmt::format("s3://{}/{}", place.bucket, folder));
    name = last;
  } else {
    std::tie(source.folder, name) = split_last(mended(place.path), ".");
    source.storage = open_storage(source.folder);
  }
  const auto object = source.storage->find(name);
  if (!object) {
    return std::nullopt;
  }
  const bool is_into = destination.ends_with('/') || fs::is_directory(destination);
  const fs::path target = is_into ? fs::path(destination) / name : fs::path(destination);
  const bool has_sidecar = source.storage->find(name + base::kSidecarSuffix).has_value();
  source.items.push_back({*object, mended(target), has_sidecar});
  return source;
}

FetchSource source_folder(const std::string& location, const std::string& destination) {
  const Location place = parse_location(location);
  FetchSource source{
      .storage = open_storage(location), .location = location, .folder = {}, .items = {}};
  if (!place.is_s3) {
    source.folder = mended(place.path);
  }
  std::set<std::string> paths;
  for (ObjectInfo& object : source.storage->list()) {
    check_relative(object.path, location);  // a key may have ".." in it
    paths.insert(object.path);
    const std::string target = mended(fs::path(destination) / object.path);
    source.items.push_back({std::move(object), target, false});
  }
  if (source.items.empty()) {
    throw IoError("there is no file {} and none below it", location);
  }
  for (FetchItem& item : source.items) {
    item.has_sidecar = paths.count(item.object.path + base::kSidecarSuffix) != 0;
  }
  return source;
}

}  // namespace

FetchSource find_source(const std::string& location, const std::string& destination) {
  const std::string plain = without_slashes(location);
  auto file = location.ends_with('/') ? std::nullopt : source_file(plain, destination);
  return file ? std::move(*file) : source_folder(plain, destination);
}

}  // namespace lockstep::storage
