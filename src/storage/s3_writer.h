#pragma once

#include <vector>

#include "storage/s3_client.h"
#include "storage/storage.h"

namespace lockstep::storage {

// What fits into one part is one PUT; more is a multipart upload, which S3 shows when it is
// completed. The ETag of each is compared with the MD5 of what was sent.
class S3Writer : public ObjectWriter {
 public:
  S3Writer(std::shared_ptr<const S3Client> client, std::string key);
  ~S3Writer() override;  // aborts an upload that was not committed; logs it if that fails
  S3Writer(const S3Writer&) = delete;

  using ObjectWriter::append;
  void append(std::span<const std::byte> bytes) override;
  void commit() override;

 private:
  size_t part_bytes() const;
  void begin_upload();
  void send_part();
  void complete_upload();
  std::string send_bytes(const std::string& what, const Query& query);  // its ETag

  const std::shared_ptr<const S3Client> client_;
  const std::string key_;
  const std::string name_;
  std::vector<std::byte> part_;     // not sent yet
  uint64_t size_ = 0;               // of all that was appended
  std::string upload_id_;           // empty: no upload is under way
  std::vector<std::string> etags_;  // of the parts
};

}  // namespace lockstep::storage
