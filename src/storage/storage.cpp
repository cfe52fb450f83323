#include "storage/storage.h"

#include <filesystem>

#include "storage/direct_source.h"
#include "storage/folder_storage.h"
#include "storage/location.h"
#include "storage/s3.h"

namespace lockstep::storage {

std::shared_ptr<Storage> open_storage(const std::string& location) {
  const Location place = parse_location(location);
  if (place.is_s3) {
    return open_s3_storage(place);
  }
  return std::make_shared<FolderStorage>(location, place.path);
}

std::unique_ptr<base::ByteSource> open_source(const std::string& location) {
  const Location place = parse_location(location);
  if (place.is_s3) {
    return open_s3_source(place);
  }
  return std::make_unique<base::FileSource>(place.path);
}

std::unique_ptr<base::ByteSource> open_direct_source(const std::string& location) {
  const Location place = parse_location(location);
  if (place.is_s3) {
    return open_s3_source(place);
  }
  return std::make_unique<DirectSource>(place.path);
}

std::optional<ObjectInfo> find_file(const std::string& location) {
  const size_t name = location.rfind('/') + 1;  // npos + 1 is 0
  return open_storage(name == 0 ? "." : location.substr(0, name))->find(location.substr(name));
}

bool is_folder(const std::string& location) {
  const Location place = parse_location(location);
  if (!place.is_s3) {
    std::error_code ignored;
    return std::filesystem::is_directory(place.path, ignored);
  }
  return !std::filesystem::path(place.path).has_extension();
}

bool is_remote(const std::string& location) {
  return parse_location(location).is_s3;
}

}  // namespace lockstep::storage
