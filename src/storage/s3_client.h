#pragma once

// Requests to one bucket: signed, sent again while that may help, failures told in a sentence.

#include <functional>
#include <string>
#include <vector>

#include "storage/http.h"
#include "storage/s3_settings.h"
#include "storage/s3_url.h"

namespace lockstep::storage {

struct S3Request {
  std::string what;  // REQUIRED, for messages, after "cannot ": "read s3://b/k at offset 0"
  std::string method = "GET";
  std::string key;  // empty: the bucket itself
  Query query;
  std::vector<std::string> headers;
  std::span<const std::byte> body;
  std::optional<std::span<std::byte>> into;  // filled to its end by a good answer
  std::vector<int> expected;                 // further statuses that are answers, no failures
  // Why a good answer is none after all, in words (it is asked for again), or nothing.
  std::function<std::string(const HttpResponse&)> defect;
};

// Threads: const methods may be called concurrently.
class S3Client {
 public:
  S3Client(S3Settings settings, std::string bucket);

  // A good answer, or one with an expected status. Throws IoError at the end of the settings'
  // timeout, or at once for what another attempt would not mend.
  HttpResponse send(const S3Request& request) const;
  HttpResponse send(const S3Request& request, base::Deadline deadline) const;

  const std::string& bucket() const { return bucket_; }
  std::string location(const std::string& key) const;  // "s3://bucket/key"

 private:
  HttpResponse try_once(const S3Request& request, base::Deadline deadline) const;
  [[noreturn]] void fail(const S3Request& request, const HttpResponse& response,
                         int num_attempts) const;
  std::string reason(const HttpResponse& response) const;

  const S3Settings settings_;
  const std::string bucket_;
  HttpClient http_;
};

}  // namespace lockstep::storage
