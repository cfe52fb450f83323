#include "storage/s3.h"

#include <lockstep/base/error.h>

#include "storage/s3_storage.h"

namespace lockstep::storage {

std::shared_ptr<Storage> open_s3_storage(const Location& place) {
  return std::make_shared<S3Storage>(place, S3Settings::from_env(base::Env()));
}

std::unique_ptr<base::ByteSource> open_s3_source(const Location& place) {
  if (place.path.empty()) {
    throw UsageError("s3://{} is a bucket; name a file in it: s3://{}/key", place.bucket,
                     place.bucket);
  }
  return open_s3_object(std::make_shared<S3Client>(S3Settings::from_env(base::Env()), place.bucket),
                        place.path);
}

}  // namespace lockstep::storage
