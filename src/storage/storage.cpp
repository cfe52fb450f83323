#include "storage/storage.h"

#include <lockstep/base/error.h>

#include "storage/folder_storage.h"
#include "storage/location.h"

namespace lockstep {

namespace {

[[noreturn]] void refuse_s3(const std::string& location) {
  throw UsageError("{}: this lockstep was built without S3; copy the file here and name its path",
                   location);
}

}  // namespace

std::shared_ptr<Storage> open_storage(const std::string& location) {
  const Location place = parse_location(location);
  if (place.is_s3) {
    refuse_s3(location);
  }
  return std::make_shared<FolderStorage>(location, place.path);
}

std::unique_ptr<ByteSource> open_source(const std::string& location) {
  const Location place = parse_location(location);
  if (place.is_s3) {
    refuse_s3(location);
  }
  return std::make_unique<FileSource>(place.path);
}

bool is_remote(const std::string& location) {
  return parse_location(location).is_s3;
}

}  // namespace lockstep
