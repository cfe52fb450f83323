#include "checkpoint_files/manifest.h"

#include <algorithm>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "base/hash.h"
#include "formats/tensor_info.h"

namespace lockstep::checkpoint_files {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "lockstep-checkpoint";
constexpr int kVersion = 2;
constexpr int kFirstVersion = 1;  // the same without attachments

// Around the body, byte by byte, so that no bit of the file is outside of what is compared.
constexpr std::string_view kBeforeSum = "{\"xxh3\": \"";
constexpr std::string_view kBeforeBody = "\", \"manifest\": ";
constexpr std::string_view kAfterBody = "}\n";
constexpr size_t kSumDigits = 32;

Json to_json(const ManifestShard& shard) {
  return {{"file", shard.file}, {"bytes", shard.size_bytes}, {"xxh3", shard.xxh3}};
}

ManifestShard shard_of(const Json& json) {
  return {.file = json.at("file").get<std::string>(),
          .size_bytes = json.at("bytes").get<uint64_t>(),
          .xxh3 = json.at("xxh3").get<std::string>()};
}

Json to_json(const ManifestTensor& tensor) {
  Json pieces = Json::array();
  for (const ManifestPiece& piece : tensor.pieces) {
    pieces.push_back({piece.shard, piece.offset_bytes, piece.begin, piece.count});
  }
  return {{"name", tensor.name},
          {"dtype", formats::name_of(tensor.dtype)},
          {"shape", tensor.shape},
          {"pieces", std::move(pieces)}};
}

// Knows all types, also those that safetensors lacks.
std::optional<formats::DType> dtype_named(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(formats::DType::C128); ++i) {
    if (formats::name_of(static_cast<formats::DType>(i)) == name) {
      return static_cast<formats::DType>(i);
    }
  }
  return std::nullopt;
}

ManifestTensor tensor_of(const Json& json) {
  const auto dtype = dtype_named(json.at("dtype").get<std::string>());
  if (!dtype) {
    throw FormatError("no type is called {}", base::shown(json.at("dtype").get<std::string>()));
  }
  ManifestTensor tensor{.name = json.at("name").get<std::string>(),
                        .dtype = *dtype,
                        .shape = json.at("shape").get<std::vector<int64_t>>(),
                        .pieces = {}};
  for (const Json& piece : json.at("pieces")) {
    tensor.pieces.push_back({.shard = piece.at(0).get<uint64_t>(),
                             .offset_bytes = piece.at(1).get<uint64_t>(),
                             .begin = piece.at(2).get<uint64_t>(),
                             .count = piece.at(3).get<uint64_t>()});
  }
  return tensor;
}

Manifest manifest_of(const Json& json) {
  const int version = json.at("version").get<int>();
  if (json.at("format").get<std::string>() != kFormat || version < kFirstVersion ||
      version > kVersion) {
    throw FormatError("it is of another format or version than {} {} to {}", kFormat, kFirstVersion,
                      kVersion);
  }
  Manifest manifest{.step = json.at("step").get<int64_t>(),
                    .sequence = json.at("sequence").get<uint64_t>(),
                    .created_s = json.at("created_s").get<int64_t>(),
                    .score = std::nullopt,
                    .values = json.at("values").get<std::map<std::string, std::string>>(),
                    .shards = {},
                    .tensors = {}};
  if (!json.at("score").is_null()) {
    manifest.score = json.at("score").get<double>();
  }
  for (const Json& shard : json.at("shards")) {
    manifest.shards.push_back(shard_of(shard));
  }
  for (const Json& tensor : json.at("tensors")) {
    manifest.tensors.push_back(tensor_of(tensor));
  }
  if (version > kFirstVersion) {
    for (const Json& attachment : json.at("attachments")) {
      manifest.attachments.push_back(
          {.name = attachment.at("name").get<std::string>(), .stored = shard_of(attachment)});
    }
  }
  return manifest;
}

void check_files(const Manifest& manifest) {
  std::unordered_set<std::string_view> seen = {kManifestFile};
  for (size_t i = 0; i < manifest.num_files(); ++i) {
    const std::string& file = manifest.file(i).file;
    if (file.empty() || file.front() == '.' || file.find('/') != std::string::npos) {
      throw FormatError("{} is no name of a shard", base::shown(file));
    }
    if (!seen.insert(file).second) {
      throw FormatError("the file {} stands there twice", base::shown(file));
    }
  }
}

void check_attachments(const Manifest& manifest) {
  if (manifest.attachments.size() > kMaxAttachments) {
    throw FormatError("it has {} attachments, the limit is {}", manifest.attachments.size(),
                      kMaxAttachments);
  }
  std::unordered_set<std::string_view> names;
  for (const ManifestAttachment& attachment : manifest.attachments) {
    if (!is_attachment_name(attachment.name) || !names.insert(attachment.name).second) {
      throw FormatError("{} is no name of an attachment, or stands there twice",
                        base::shown(attachment.name));
    }
    if (attachment.stored.size_bytes > kMaxAttachmentBytes) {
      throw FormatError("attachment {} has {} bytes, the limit is {}", base::shown(attachment.name),
                        attachment.stored.size_bytes, kMaxAttachmentBytes);
    }
  }
}

void check_tensor(const Manifest& manifest, const ManifestTensor& tensor) {
  const auto num_elements = formats::checked_elements(tensor.shape);
  const auto bytes = formats::checked_bytes(tensor.dtype, tensor.shape);
  if (!num_elements || !bytes || tensor.shape.size() > formats::kMaxDims ||
      formats::bits_of(tensor.dtype) < 8) {
    throw FormatError("tensor {} cannot be {}", base::shown(tensor.name),
                      formats::to_string(tensor.dtype, tensor.shape));
  }
  const auto element_bytes = static_cast<uint64_t>(formats::bits_of(tensor.dtype) / 8);
  uint64_t next = 0;
  for (const ManifestPiece& piece : tensor.pieces) {
    const auto size = formats::checked_multiply(piece.count, element_bytes);
    const auto end = size ? formats::checked_add(piece.offset_bytes, *size) : std::nullopt;
    if (piece.begin != next || piece.count > *num_elements - next ||
        piece.shard >= manifest.shards.size() || !end ||
        *end > manifest.shards[piece.shard].size_bytes) {
      throw FormatError("the piece of tensor {} at element {} is not where it can be",
                        base::shown(tensor.name), piece.begin);
    }
    next += piece.count;
  }
  if (next != *num_elements) {
    throw FormatError("the pieces of tensor {} have {} of its {} elements",
                      base::shown(tensor.name), next, *num_elements);
  }
}

void check(const Manifest& manifest) {
  if (manifest.step < 0) {
    throw FormatError("its step is {}", manifest.step);
  }
  check_files(manifest);
  check_attachments(manifest);
  std::unordered_set<std::string_view> names;
  for (const ManifestTensor& tensor : manifest.tensors) {
    check_tensor(manifest, tensor);
    if (!names.insert(tensor.name).second) {
      throw FormatError("the name {} stands there twice", base::shown(tensor.name));
    }
  }
}

std::string_view checked_body(const std::string& name, std::string_view text) {
  constexpr size_t kHead = kBeforeSum.size() + kSumDigits + kBeforeBody.size();
  if (text.size() < kHead + kAfterBody.size() || !text.starts_with(kBeforeSum) ||
      text.substr(kBeforeSum.size() + kSumDigits, kBeforeBody.size()) != kBeforeBody ||
      !text.ends_with(kAfterBody)) {
    throw FormatError("{}: not a manifest of a checkpoint, or a part of one ({} bytes)", name,
                      text.size());
  }
  const std::string_view body = text.substr(kHead, text.size() - kHead - kAfterBody.size());
  const std::string_view written = text.substr(kBeforeSum.size(), kSumDigits);
  const std::string found = base::xxh3_hex(body);
  if (found != written) {
    throw FormatError("{}: the manifest is damaged: its XXH3 is {}, and {} was written", name,
                      found, base::shown(written));
  }
  return body;
}

}  // namespace

uint64_t Manifest::shard_bytes() const {
  uint64_t sum = 0;
  for (size_t i = 0; i < num_files(); ++i) {
    sum += file(i).size_bytes;
  }
  return sum;
}

const ManifestShard& Manifest::file(size_t which) const {
  return which < shards.size() ? shards[which] : attachments.at(which - shards.size()).stored;
}

bool is_attachment_name(std::string_view name) {
  constexpr size_t kMaxLength = 100;
  return !name.empty() && name.size() <= kMaxLength && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '-' || c == '_' || c == '.';
         });
}

std::string manifest_text(const Manifest& manifest) {
  Json shards = Json::array();
  for (const ManifestShard& shard : manifest.shards) {
    shards.push_back(to_json(shard));
  }
  Json attachments = Json::array();
  for (const ManifestAttachment& attachment : manifest.attachments) {
    Json json{{"name", attachment.name}};
    json.update(to_json(attachment.stored));
    attachments.push_back(std::move(json));
  }
  Json tensors = Json::array();
  for (const ManifestTensor& tensor : manifest.tensors) {
    tensors.push_back(to_json(tensor));
  }
  const Json json{{"format", kFormat},
                  {"version", kVersion},
                  {"step", manifest.step},
                  {"sequence", manifest.sequence},
                  {"created_s", manifest.created_s},
                  {"score", manifest.score ? Json(*manifest.score) : Json(nullptr)},
                  {"values", manifest.values},
                  {"shards", std::move(shards)},
                  {"attachments", std::move(attachments)},
                  {"tensors", std::move(tensors)}};
  std::string body;
  try {
    body = json.dump();
  } catch (const nlohmann::json::exception&) {
    throw UsageError("checkpoint: a value or a tensor's name is not UTF-8; encode it as text");
  }
  return fmt::format("{}{}{}{}{}", kBeforeSum, base::xxh3_hex(body), kBeforeBody, body, kAfterBody);
}

Manifest parse_manifest(const std::string& name, std::string_view text) {
  const std::string_view body = checked_body(name, text);
  try {
    Manifest manifest = manifest_of(Json::parse(body));
    check(manifest);
    return manifest;
  } catch (const nlohmann::json::exception& error) {
    throw FormatError("{}: not a manifest of a checkpoint: {}", name, error.what());
  } catch (const FormatError& error) {
    throw FormatError("{}: {}", name, error.what());
  }
}

}  // namespace lockstep::checkpoint_files
