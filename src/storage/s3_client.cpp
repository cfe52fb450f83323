#include "storage/s3_client.h"

#include <algorithm>
#include <random>
#include <thread>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "storage/xml.h"

namespace lockstep::storage {

namespace {

constexpr auto kFirstPause = std::chrono::milliseconds(100);  // doubled after each attempt
constexpr auto kMaxPause = std::chrono::milliseconds(5000);
constexpr size_t kMaxServerWords = 200;

// Half of it is chance: clients that were turned away together must not come back together.
std::chrono::nanoseconds pause_before(int attempt) {
  thread_local std::mt19937 dice(std::random_device{}());
  const auto whole = std::min<std::chrono::nanoseconds>(kMaxPause, kFirstPause * (1 << attempt));
  return whole / 2 + whole * std::uniform_int_distribution<int>(0, 500)(dice) / 1000;
}

bool may_pass(const HttpResponse& response) {
  if (response.is_distrusted) {
    return false;
  }
  if (!response.failure.empty() || response.status == 0) {
    return true;
  }
  constexpr int kTransient[] = {408, 429, 500, 502, 503, 504};
  return std::count(std::begin(kTransient), std::end(kTransient), response.status) > 0;
}

// What the server says, made safe to print: it may be hostile.
std::string printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      c = ' ';
    }
  }
  return text.size() > kMaxServerWords ? text.substr(0, kMaxServerWords) + "..." : text;
}

struct S3Error {
  std::string code;     // "NoSuchKey"
  std::string message;  // for people
};

S3Error error_in(const std::string& body) {
  try {
    const XmlElement error = parse_xml(body);
    return {printable(error.text_of("Code")), printable(error.text_of("Message"))};
  } catch (const FormatError&) {
    return {};  // of a HEAD there is none; of a proxy it is HTML
  }
}

}  // namespace

S3Client::S3Client(S3Settings settings, std::string bucket)
    : settings_(std::move(settings)), bucket_(std::move(bucket)), http_(settings_) {}

std::string S3Client::location(const std::string& key) const {
  return fmt::format("s3://{}/{}", bucket_, key);
}

HttpResponse S3Client::send(const S3Request& request) const {
  return send(request, base::Deadline::after(settings_.timeout));
}

HttpResponse S3Client::send(const S3Request& request, base::Deadline deadline) const {
  for (int attempt = 0;; ++attempt) {
    HttpResponse response = try_once(request, deadline);
    const bool is_expected =
        std::count(request.expected.begin(), request.expected.end(), response.status) > 0;
    if (response.is_good() || (response.failure.empty() && is_expected)) {
      return response;
    }
    const auto pause = pause_before(std::min(attempt, 10));
    if (!may_pass(response) || deadline.remaining() <= pause) {
      fail(request, response, attempt + 1);
    }
    log::debug("storage", "{}: attempt {}: {}; again in {}", request.what, attempt + 1,
               reason(response), base::to_text(pause));
    std::this_thread::sleep_for(pause);
  }
}

HttpResponse S3Client::try_once(const S3Request& request, base::Deadline deadline) const {
  HttpRequest http{.method = request.method,
                   .url = settings_.url(bucket_, request.key),
                   .headers = request.headers,
                   .body = request.body,
                   .into = request.into};
  if (!request.query.empty()) {
    http.url += "?" + query_text(request.query);
  }
  HttpResponse response = http_.send(http, deadline);
  if (response.is_good() && request.into && response.body_bytes != request.into->size()) {
    response.failure = fmt::format("the answer has {} bytes instead of {}", response.body_bytes,
                                   request.into->size());
  }
  if (response.is_good() && request.defect) {
    response.failure = request.defect(response);
  }
  return response;
}

std::string S3Client::reason(const HttpResponse& response) const {
  if (response.is_distrusted) {
    return fmt::format(
        "the certificate of the server is not trusted ({}); if it is one of your own, name the "
        "file of its authority: AWS_CA_BUNDLE=FILE (PEM)",
        printable(response.failure));
  }
  if (!response.failure.empty()) {
    return printable(response.failure);
  }
  const S3Error error = error_in(response.body);
  std::string said = fmt::format("{}", response.status);
  if (!error.code.empty()) {
    said += " " + error.code;
  }
  if (!error.message.empty()) {
    said += ", \"" + error.message + "\"";
  }
  const std::string region = printable(response.header("x-amz-bucket-region"));
  switch (response.status) {
    case 301:
    case 302:
    case 307:
    case 308:
      return region.empty()
                 ? fmt::format(
                       "the bucket is elsewhere ({}); set AWS_REGION or AWS_ENDPOINT_URL "
                       "(region here: {})",
                       said, settings_.region)
                 : fmt::format("the bucket is in another region ({}); set AWS_REGION={} (here: {})",
                               said, region, settings_.region);
    case 400:
      return fmt::format(
          "the server does not accept the request ({}); are region {} and the "
          "credentials (from {}) right?",
          said, settings_.region, settings_.origin);
    case 401:
    case 403:
      return fmt::format(
          "access is denied ({}) to the credentials from {}; may they read and list "
          "the bucket, and is this host's clock right?",
          said, settings_.origin);
    case 404:
      return fmt::format("there is none ({}); check bucket and key", said);
    case 412:
      return fmt::format("it was replaced since it was opened ({}); open it again", said);
    default:
      return fmt::format("the server answers {}", said);
  }
}

void S3Client::fail(const S3Request& request, const HttpResponse& response,
                    int num_attempts) const {
  std::string attempts;
  if (num_attempts > 1) {
    attempts = fmt::format(" (after {} attempts, LOCKSTEP_S3_TIMEOUT allows {})", num_attempts,
                           base::to_text(settings_.timeout));
  }
  throw IoError("cannot {} ({}): {}{}", request.what, settings_.endpoint_text(), reason(response),
                attempts);
}

}  // namespace lockstep::storage
