#include "storage/s3_storage.h"

#include <algorithm>
#include <charconv>

#include <lockstep/base/error.h>

#include "storage/s3_writer.h"
#include "storage/xml.h"

namespace lockstep::storage {

namespace {

constexpr size_t kMaxObjects =
    10'000'000;  // that a list is read to; more is a mistake or an attack

std::string defect_of_list(const HttpResponse& response) {
  try {
    const XmlElement root = parse_xml(response.body);
    return root.name == "ListBucketResult" ? "" : "the answer is no list of objects";
  } catch (const FormatError& error) {
    return fmt::format("the answer is {}", error.what());
  }
}

}  // namespace

S3Storage::S3Storage(const Location& place, S3Settings settings)
    : location_(fmt::format("s3://{}/{}", place.bucket, place.path)),
      folder_(place.path.empty() ? "" : place.path + "/"),
      client_(std::make_shared<S3Client>(std::move(settings), place.bucket)) {}

std::string S3Storage::key_of(const std::string& path) const {
  check_relative(path, location_);
  return folder_ + path;
}

std::string S3Storage::list_some(const std::string& prefix, const std::string& token,
                                 std::vector<ObjectInfo>& objects) const {
  S3Request request{.what = "list " + client_->location(prefix),
                    .query = {{"list-type", "2"}, {"prefix", prefix}},
                    .defect = defect_of_list};
  if (!token.empty()) {
    request.query.emplace_back("continuation-token", token);
  }
  const XmlElement root = parse_xml(client_->send(request).body);
  for (const XmlElement& entry : root.children) {
    if (entry.name != "Contents") {
      continue;
    }
    const std::string key = entry.text_of("Key");
    const std::string size = entry.text_of("Size");
    ObjectInfo object{.path = {}, .size_bytes = 0, .version = entry.text_of("ETag")};
    const auto [end, error] =
        std::from_chars(size.data(), size.data() + size.size(), object.size_bytes);
    if (!key.starts_with(prefix) || error != std::errc() || end != size.data() + size.size()) {
      throw IoError("cannot list {}: the server names the object '{}' with the size '{}'",
                    client_->location(prefix), key, size);
    }
    if (!key.ends_with('/')) {  // what consoles make for an empty folder
      object.path = key.substr(folder_.size());
      objects.push_back(std::move(object));
    }
  }
  return root.text_of("IsTruncated") == "true" ? root.text_of("NextContinuationToken") : "";
}

std::vector<ObjectInfo> S3Storage::list(const std::string& prefix) const {
  std::vector<ObjectInfo> objects;
  std::string token;
  do {
    const std::string last = token;
    token = list_some(folder_ + prefix, token, objects);
    if (objects.size() > kMaxObjects || (!token.empty() && token == last)) {
      throw IoError(
          "cannot list {}: more than {} objects, or a list without an end; name a folder "
          "in it",
          client_->location(folder_ + prefix), kMaxObjects);
    }
  } while (!token.empty());
  std::sort(objects.begin(), objects.end(),
            [](const ObjectInfo& a, const ObjectInfo& b) { return a.path < b.path; });
  return objects;
}

std::optional<ObjectInfo> S3Storage::find(const std::string& path) const {
  const std::string key = key_of(path);
  const HttpResponse response = client_->send({.what = "look at " + client_->location(key),
                                               .method = "HEAD",
                                               .key = key,
                                               .expected = {404}});
  if (response.status == 404) {
    return std::nullopt;
  }
  return ObjectInfo{.path = path,
                    .size_bytes = content_length(response, client_->location(key)),
                    .version = response.header("etag")};
}

std::unique_ptr<base::ByteSource> S3Storage::open(const std::string& path) const {
  return open_s3_object(client_, key_of(path));
}

std::unique_ptr<ObjectWriter> S3Storage::create(const std::string& path) {
  return std::make_unique<S3Writer>(client_, key_of(path));
}

bool S3Storage::create_new(const std::string& path, std::string_view text) {
  constexpr int kExists = 412;
  constexpr int kRace = 409;
  constexpr int kUnknown = 501;  // of a server that knows no such condition, and says so
  const std::string key = key_of(path);
  S3Request request{.what = "write " + client_->location(key),
                    .method = "PUT",
                    .key = key,
                    .headers = {"Content-Type: application/octet-stream", "If-None-Match: *"},
                    .body = std::as_bytes(std::span(text)),
                    .expected = {kExists, kRace, kUnknown}};
  int status = client_->send(request).status;
  if (status == kUnknown) {
    request.headers.pop_back();
    request.expected.clear();
    status = client_->send(request).status;
  }
  return status != kExists && status != kRace;
}

void S3Storage::remove(const std::string& path) {
  const std::string key = key_of(path);
  client_->send({.what = "remove " + client_->location(key),
                 .method = "DELETE",
                 .key = key,
                 .expected = {404}});
}

}  // namespace lockstep::storage
