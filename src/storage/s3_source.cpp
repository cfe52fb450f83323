#include <charconv>

#include <lockstep/base/error.h>

#include "storage/s3_storage.h"

namespace lockstep::storage {

namespace {

constexpr uint64_t kMaxRange = 8u << 20;  // of one request, and what is fetched again if it fails

class S3Source : public base::ByteSource {
 public:
  S3Source(std::shared_ptr<const S3Client> client, std::string key, uint64_t size, std::string etag)
      : client_(std::move(client)),
        key_(std::move(key)),
        name_(client_->location(key_)),
        size_(size),
        etag_(std::move(etag)) {}

  const std::string& name() const override { return name_; }
  uint64_t size() const override { return size_; }

 private:
  void read_inside(uint64_t offset, std::span<std::byte> bytes) const override {
    for (; !bytes.empty(); offset += kMaxRange) {
      const auto now = bytes.first(std::min<size_t>(bytes.size(), kMaxRange));
      read_range(offset, now);
      bytes = bytes.subspan(now.size());
    }
  }

  void read_range(uint64_t offset, std::span<std::byte> bytes) const {
    S3Request request{
        .what = fmt::format("read {} bytes of {} at offset {}", bytes.size(), name_, offset),
        .key = key_,
        .headers = {fmt::format("Range: bytes={}-{}", offset, offset + bytes.size() - 1)},
        .into = bytes};
    if (!etag_.empty()) {
      request.headers.push_back("If-Match: " + etag_);
    }
    request.defect = [&](const HttpResponse& response) {
      return defect_of(response, offset, bytes.size());
    };
    client_->send(request);
  }

  std::string defect_of(const HttpResponse& response, uint64_t offset, size_t num_bytes) const {
    const std::string etag = response.header("etag");
    if (!etag_.empty() && !etag.empty() && etag != etag_) {  // not every server knows If-Match
      throw IoError(
          "cannot read {} at offset {}: it was replaced since it was opened; open it again", name_,
          offset);
    }
    // Some servers answer a range with 200, and one that knows none with everything.
    const std::string expected =
        fmt::format("bytes {}-{}/{}", offset, offset + num_bytes - 1, size_);
    const std::string found = response.header("content-range");
    const bool is_whole = response.status == 200 && found.empty() && num_bytes == size_;
    return is_whole || found == expected
               ? ""
               : fmt::format("the answer is the part '{}' instead of '{}'", found, expected);
  }

  const std::shared_ptr<const S3Client> client_;
  const std::string key_;
  const std::string name_;
  const uint64_t size_;
  const std::string etag_;  // empty: the server has none
};

}  // namespace

std::unique_ptr<base::ByteSource> open_s3_object(std::shared_ptr<const S3Client> client,
                                                 const std::string& key) {
  const HttpResponse response =
      client->send({.what = "open " + client->location(key), .method = "HEAD", .key = key});
  return std::make_unique<S3Source>(client, key, content_length(response, client->location(key)),
                                    response.header("etag"));
}

uint64_t content_length(const HttpResponse& response, const std::string& location) {
  const std::string text = response.header("content-length");
  uint64_t size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (error != std::errc() || text.empty() || end != text.data() + text.size()) {
    throw IoError("cannot open {}: the server does not say its size (Content-Length '{}')",
                  location, text);
  }
  return size;
}

}  // namespace lockstep::storage
