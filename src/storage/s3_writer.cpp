#include "storage/s3_writer.h"

#include <algorithm>
#include <exception>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/digest.h"
#include "storage/xml.h"

namespace lockstep::storage {

namespace {

constexpr size_t kPartBytes = 16u << 20;
constexpr size_t kPartsOfASize = 500;  // then parts grow: 10,000 of them, S3's limit, hold 1.6 TB
constexpr auto kAbortTime = std::chrono::seconds(5);

std::string defect_of_etag(const HttpResponse& response, const std::string& md5) {
  // Encrypted with a key of KMS, an ETag is no MD5.
  const std::string encryption = response.header("x-amz-server-side-encryption");
  const std::string etag = response.header("etag");
  const bool is_md5 = encryption.empty() || encryption == "AES256";
  if (etag.empty()) {
    return "the server names no ETag";
  }
  return !is_md5 || etag == "\"" + md5 + "\"" || etag == md5
             ? ""
             : fmt::format("what arrived has the ETag {}, what was sent the MD5 {}", etag, md5);
}

// Completing answers 200 at once and may report the failure in the body.
std::string defect_of_completion(const HttpResponse& response) {
  try {
    const XmlElement root = parse_xml(response.body);
    return root.name == "CompleteMultipartUploadResult"
               ? ""
               : fmt::format("the server answers {}", root.text_of("Code"));
  } catch (const FormatError& error) {
    return fmt::format("the answer is {}", error.what());
  }
}

}  // namespace

S3Writer::S3Writer(std::shared_ptr<const S3Client> client, std::string key)
    : client_(std::move(client)), key_(std::move(key)), name_(client_->location(key_)) {}

S3Writer::~S3Writer() {
  if (upload_id_.empty()) {
    return;
  }
  try {
    client_->send({.what = "abort the upload of " + name_,
                   .method = "DELETE",
                   .key = key_,
                   .query = {{"uploadId", upload_id_}},
                   .expected = {404}},
                  base::Deadline::after(kAbortTime));
  } catch (const std::exception& error) {
    log::warn("storage", "{}; its parts stay, and cost, until the bucket's rules remove them",
              error.what());
  }
}

size_t S3Writer::part_bytes() const {
  return kPartBytes * (1 + etags_.size() / kPartsOfASize);
}

void S3Writer::append(std::span<const std::byte> bytes) {
  size_ += bytes.size();
  while (!bytes.empty()) {
    if (part_.size() == part_bytes()) {  // only now: a last part may be shorter, never empty
      send_part();
    }
    const auto now = bytes.first(std::min(bytes.size(), part_bytes() - part_.size()));
    part_.insert(part_.end(), now.begin(), now.end());
    bytes = bytes.subspan(now.size());
  }
}

std::string S3Writer::send_bytes(const std::string& what, const Query& query) {
  const std::string md5 = base::md5_hex(part_);
  const HttpResponse response = client_->send(
      {.what = what,
       .method = "PUT",
       .key = key_,
       .query = query,
       .headers = {"Content-Type: application/octet-stream"},
       .body = part_,
       .defect = [&](const HttpResponse& answer) { return defect_of_etag(answer, md5); }});
  return response.header("etag");
}

void S3Writer::begin_upload() {
  const auto id_in = [](const HttpResponse& response) {
    try {
      return parse_xml(response.body).text_of("UploadId");
    } catch (const FormatError&) {
      return std::string();
    }
  };
  const HttpResponse response =
      client_->send({.what = "begin the upload of " + name_,
                     .method = "POST",
                     .key = key_,
                     .query = {{"uploads", ""}},
                     .headers = {"Content-Type: application/octet-stream"},
                     .defect = [&](const HttpResponse& answer) -> std::string {
                       return id_in(answer).empty() ? "the answer names no upload" : "";
                     }});
  upload_id_ = id_in(response);
}

void S3Writer::send_part() {
  if (upload_id_.empty()) {
    begin_upload();
  }
  const size_t number = etags_.size() + 1;
  etags_.push_back(send_bytes(fmt::format("write part {} of {} ({} bytes, up to offset {})", number,
                                          name_, part_.size(), size_),
                              {{"partNumber", std::to_string(number)}, {"uploadId", upload_id_}}));
  part_.clear();
}

void S3Writer::complete_upload() {
  std::string list = "<CompleteMultipartUpload>";
  for (size_t i = 0; i < etags_.size(); ++i) {
    list +=
        fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>", i + 1, etags_[i]);
  }
  list += "</CompleteMultipartUpload>";
  const HttpResponse response = client_->send({.what = "complete the upload of " + name_,
                                               .method = "POST",
                                               .key = key_,
                                               .query = {{"uploadId", upload_id_}},
                                               .headers = {"Content-Type: application/xml"},
                                               .body = std::as_bytes(std::span(list)),
                                               .expected = {404},
                                               .defect = defect_of_completion});
  upload_id_.clear();
  if (response.status == 404) {
    // An attempt whose answer was lost has completed it, or somebody has aborted it.
    const HttpResponse now =
        client_->send({.what = "find " + name_, .method = "HEAD", .key = key_, .expected = {404}});
    if (now.header("content-length") != std::to_string(size_)) {
      throw IoError("cannot complete the upload of {}: the server knows it no more; write it again",
                    name_);
    }
  }
}

void S3Writer::commit() {
  if (upload_id_.empty()) {
    send_bytes(fmt::format("write {} ({} bytes)", name_, size_), {});
  } else {
    send_part();
    complete_upload();
  }
  part_.clear();
}

}  // namespace lockstep::storage
