#include "storage/http.h"

#include <algorithm>
#include <cctype>
#include <cstring>

#include <lockstep/base/error.h>
#include <lockstep/base/version.h>

#include "base/digest.h"
#include "storage/curl_library.h"

namespace lockstep::storage {

namespace {

constexpr long kConnectMs = 10'000;
constexpr long kSlowBytesPerSecond = 1024;  // slower for S3Settings::stall is a stalled connection
constexpr long kBufferBytes = 512 * 1024;
constexpr size_t kMaxBody = 64u << 20;  // of an answer in memory: a list of 1000 objects has 1 MB
constexpr size_t kMaxErrorBody = 64u << 10;

// What the callbacks of one request share.
struct Exchange {
  CURL* handle = nullptr;
  const HttpRequest* request = nullptr;
  HttpResponse response;
  bool is_too_long = false;
};

long status_of(const Exchange& exchange) {
  long status = 0;
  curl().easy_getinfo(exchange.handle, CURLINFO_RESPONSE_CODE, &status);
  return status;
}

size_t take_body(char* bytes, size_t, size_t size, void* pointer) {
  auto& exchange = *static_cast<Exchange*>(pointer);
  const long status = status_of(exchange);
  const bool is_good = status >= 200 && status < 300;
  size_t& filled = exchange.response.body_bytes;
  if (is_good && exchange.request->into) {
    const std::span<std::byte> into = *exchange.request->into;
    if (size > into.size() - filled) {
      exchange.is_too_long = true;
      return 0;
    }
    std::memcpy(into.data() + filled, bytes, size);
  } else if (filled + size > (is_good ? kMaxBody : kMaxErrorBody)) {
    exchange.is_too_long = true;
    return 0;
  } else {
    exchange.response.body.append(bytes, size);
  }
  filled += size;
  return size;
}

size_t take_header(char* bytes, size_t, size_t size, void* pointer) {
  auto& headers = static_cast<Exchange*>(pointer)->response.headers;
  const std::string_view line(bytes, size);
  if (line.starts_with("HTTP/")) {
    headers.clear();  // those before were of "100 Continue"
    return size;
  }
  const size_t colon = line.find(':');
  if (colon != std::string_view::npos) {
    std::string name(line.substr(0, colon));
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    const size_t begin = std::min(line.find_first_not_of(" \t", colon + 1), size);
    const size_t end = line.find_last_not_of(" \t\r\n") + 1;
    headers[name] = begin < end ? line.substr(begin, end - begin) : "";
  }
  return size;
}

void set_body(CURL* handle, const HttpRequest& request) {
  if (request.method == "HEAD") {
    curl().easy_setopt(handle, CURLOPT_NOBODY, 1L);
    return;
  }
  if (request.method == "PUT" || request.method == "POST") {
    // The body goes as "post fields": libcurl then signs their hash and can send them twice.
    curl().easy_setopt(handle, CURLOPT_POSTFIELDSIZE_LARGE,
                       static_cast<curl_off_t>(request.body.size()));
    curl().easy_setopt(
        handle, CURLOPT_POSTFIELDS,
        request.body.empty() ? "" : reinterpret_cast<const char*>(request.body.data()));
  }
  curl().easy_setopt(handle, CURLOPT_CUSTOMREQUEST, request.method.c_str());
}

void set_limits(CURL* handle, const S3Settings& settings, base::Deadline deadline) {
  // 0 would be no limit.
  const long left_ms = std::max(1, deadline.poll_ms());
  if (!deadline.is_never()) {
    curl().easy_setopt(handle, CURLOPT_TIMEOUT_MS, left_ms);
  }
  curl().easy_setopt(handle, CURLOPT_CONNECTTIMEOUT_MS, kConnectMs);
  curl().easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, kSlowBytesPerSecond);
  curl().easy_setopt(handle, CURLOPT_LOW_SPEED_TIME, static_cast<long>(settings.stall.count()));
}

void set_credentials(CURL* handle, const S3Settings& settings) {
  if (!settings.access_key.empty()) {
    curl().easy_setopt(handle, CURLOPT_AWS_SIGV4,
                       fmt::format("aws:amz:{}:s3", settings.region).c_str());
    curl().easy_setopt(handle, CURLOPT_USERNAME, settings.access_key.c_str());
    curl().easy_setopt(handle, CURLOPT_PASSWORD, settings.secret_key.c_str());
  }
}

// What a distrusted certificate is: by libcurl with OpenSSL, with others.
bool is_distrust(CURLcode code) {
  return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE ||
         code == CURLE_SSL_ISSUER_ERROR || code == CURLE_SSL_INVALIDCERTSTATUS;
}

// These certificates and no others.
void set_trust(CURL* handle, const S3Settings& settings) {
  if (!settings.ca_bundle.empty()) {
    curl().easy_setopt(handle, CURLOPT_CAINFO, settings.ca_bundle.c_str());
    curl().easy_setopt(handle, CURLOPT_CAPATH, nullptr);
  }
}

}  // namespace

std::string HttpResponse::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

HttpClient::HttpClient(const S3Settings& settings) : settings_(settings) {
  curl();  // here: the destructor must not be the first to look for it
}

HttpClient::~HttpClient() {
  for (void* handle : idle_) {
    curl().easy_cleanup(handle);
  }
}

void* HttpClient::take() const {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      void* handle = idle_.back();
      idle_.pop_back();
      return handle;
    }
  }
  void* handle = curl().easy_init();
  if (handle == nullptr) {
    throw IoError("libcurl cannot make a connection: out of memory");
  }
  return handle;
}

void HttpClient::give_back(void* handle) const {
  curl().easy_reset(handle);  // the connection stays open
  const std::lock_guard lock(mutex_);
  idle_.push_back(handle);
}

HttpResponse HttpClient::send(const HttpRequest& request, base::Deadline deadline) const {
  CURL* handle = take();
  Exchange exchange{.handle = handle, .request = &request, .response = {}};
  std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers(nullptr, curl().slist_free_all);
  const auto add_header = [&](const std::string& line) {
    headers.reset(curl().slist_append(headers.release(), line.c_str()));
  };
  for (const std::string& line : request.headers) {
    add_header(line);
  }
  if (!settings_.access_key.empty()) {  // S3 wants it in every signed request; 7.88 forgets it
    add_header("x-amz-content-sha256: " + base::sha256_hex(request.body));
  }
  if (!settings_.session_token.empty()) {
    add_header("x-amz-security-token: " + settings_.session_token);
  }
  char words[CURL_ERROR_SIZE] = "";
  curl().easy_setopt(handle, CURLOPT_URL, request.url.c_str());
  curl().easy_setopt(handle, CURLOPT_HTTPHEADER, headers.get());
  curl().easy_setopt(handle, CURLOPT_ERRORBUFFER, words);
  curl().easy_setopt(handle, CURLOPT_WRITEFUNCTION, take_body);
  curl().easy_setopt(handle, CURLOPT_WRITEDATA, &exchange);
  curl().easy_setopt(handle, CURLOPT_HEADERFUNCTION, take_header);
  curl().easy_setopt(handle, CURLOPT_HEADERDATA, &exchange);
  curl().easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
  curl().easy_setopt(handle, CURLOPT_PATH_AS_IS, 1L);  // "a/../b" is a key like any other
  curl().easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
  curl().easy_setopt(handle, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl().easy_setopt(handle, CURLOPT_BUFFERSIZE, kBufferBytes);
  curl().easy_setopt(handle, CURLOPT_USERAGENT, fmt::format("lockstep/{}", kVersion).c_str());
  set_body(handle, request);
  set_limits(handle, settings_, deadline);
  set_credentials(handle, settings_);
  set_trust(handle, settings_);

  const CURLcode code = curl().easy_perform(handle);
  HttpResponse response = std::move(exchange.response);
  response.status = static_cast<int>(status_of(exchange));
  if (exchange.is_too_long) {
    response.failure = "the answer is longer than what was asked for";
  } else if (code != CURLE_OK) {
    response.failure = words[0] != '\0' ? words : curl().easy_strerror(code);
    response.is_distrusted = is_distrust(code);
  }
  give_back(handle);
  return response;
}

}  // namespace lockstep::storage
