#pragma once

// One HTTP request over libcurl. No retries and no redirects here: S3Client knows what they mean.

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "storage/s3_settings.h"

namespace lockstep::storage {

struct HttpRequest {
  std::string method = "GET";
  std::string url;                           // encoded, with its query
  std::vector<std::string> headers;          // "Name: value"
  std::span<const std::byte> body;           // of PUT and POST
  std::optional<std::span<std::byte>> into;  // where the body of a 2xx answer goes
};

struct HttpResponse {
  int status = 0;                              // 0: there was no answer
  std::map<std::string, std::string> headers;  // names in small letters
  std::string body;                            // unless it went elsewhere
  size_t body_bytes = 0;                       // of either
  std::string failure;  // why the answer is missing or not whole, in words; empty: it is whole
  bool is_distrusted = false;  // that is why: the server's certificate; it stays the same

  std::string header(const std::string& name) const;  // empty if there is none
  bool is_good() const { return failure.empty() && status >= 200 && status < 300; }
};

// Connections are kept for the next request; each thread that sends at the same time has its own.
// Threads: send() may be called concurrently.
class HttpClient {
 public:
  explicit HttpClient(const S3Settings& settings);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;

  // Throws nothing for what the network or the server does: that is in the response.
  HttpResponse send(const HttpRequest& request, base::Deadline deadline) const;

 private:
  void* take() const;
  void give_back(void* handle) const;

  const S3Settings settings_;
  mutable std::mutex mutex_;
  mutable std::vector<void*> idle_;  // libcurl's handles
};

}  // namespace lockstep::storage
