#include <lockstep/base/error.h>

#include "storage/s3.h"

namespace lockstep::storage {

namespace {

[[noreturn]] void refuse(const Location& place) {
  throw UsageError(
      "s3://{}/{}: this lockstep was built without S3; install libcurl4-openssl-dev and build it "
      "again, or copy the files here",
      place.bucket, place.path);
}

}  // namespace

std::shared_ptr<Storage> open_s3_storage(const Location& place) {
  refuse(place);
}

std::unique_ptr<base::ByteSource> open_s3_source(const Location& place) {
  refuse(place);
}

}  // namespace lockstep::storage
