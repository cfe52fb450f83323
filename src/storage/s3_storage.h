#pragma once

#include "storage/location.h"
#include "storage/s3_client.h"
#include "storage/storage.h"

namespace lockstep::storage {

// The objects of a bucket whose keys begin with a prefix, as if it were a folder.
class S3Storage : public Storage {
 public:
  S3Storage(const Location& place, S3Settings settings);

  const std::string& location() const override { return location_; }
  std::vector<ObjectInfo> list(const std::string& prefix) const override;
  std::optional<ObjectInfo> find(const std::string& path) const override;
  std::unique_ptr<base::ByteSource> open(const std::string& path) const override;
  std::unique_ptr<ObjectWriter> create(const std::string& path) override;
  bool create_new(const std::string& path, std::string_view text) override;
  void remove(const std::string& path) override;

 private:
  std::string key_of(const std::string& path) const;
  // One answer of at most 1000 objects; the token of the next, empty after the last.
  std::string list_some(const std::string& prefix, const std::string& token,
                        std::vector<ObjectInfo>& objects) const;

  std::string location_;
  std::string folder_;  // empty, or ends with a slash
  std::shared_ptr<const S3Client> client_;
};

// One object, whatever its key.
std::unique_ptr<base::ByteSource> open_s3_object(std::shared_ptr<const S3Client> client,
                                                 const std::string& key);

// What a HEAD says of the object's size; throws IoError if nothing.
uint64_t content_length(const HttpResponse& response, const std::string& location);

}  // namespace lockstep::storage
