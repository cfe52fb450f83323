#include "train/data_fingerprint.h"

#include <algorithm>

#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "base/digest.h"
#include "comm/agree.h"
#include "storage/storage.h"

namespace lockstep::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kWholeBytes = 64u << 20;
constexpr uint64_t kBlockBytes = 64u << 10;
constexpr uint64_t kNumBlocks = 64;
constexpr int64_t kNumSamples = 32;
constexpr size_t kDigits = 32;  // of a digest: enough to tell data apart

std::string hex_of(base::Digest digest) {
  return digest.hex().substr(0, kDigits);
}

// Files are hashed one after another, as if they were one.
struct SourceFile {
  std::string name;  // inside its folder; empty for a file of its own
  std::function<std::unique_ptr<base::ByteSource>()> open;
  uint64_t size_bytes = 0;
};

void append_files(const DataSource& source, const std::string& location,
                  std::vector<SourceFile>& files) {
  if (!storage::is_folder(location)) {
    const auto found = storage::find_file(location);
    if (!found) {
      throw IoError("{}: there is no file {}", source.key, location);
    }
    files.push_back({.name = "",
                     .open = [location] { return storage::open_source(location); },
                     .size_bytes = found->size_bytes});
    return;
  }
  const auto storage = storage::open_storage(location);
  for (const storage::ObjectInfo& object : storage->list()) {
    if (!source.counts || source.counts(object.path)) {
      files.push_back({.name = object.path,
                       .open = [storage, path = object.path] { return storage->open(path); },
                       .size_bytes = object.size_bytes});
    }
  }
}

// Bytes [begin, begin + size) of all files together.
void add_range(base::Digest& digest, const std::vector<SourceFile>& files, uint64_t begin,
               uint64_t size) {
  uint64_t first = 0;  // of the file
  for (const SourceFile& file : files) {
    const uint64_t from = std::max(begin, first);
    const uint64_t to = std::min(begin + size, first + file.size_bytes);
    if (from < to) {
      const auto opened = file.open();
      for (uint64_t at = from; at < to; at += kWholeBytes / 16) {
        digest.add(opened->read_text(at - first, std::min(kWholeBytes / 16, to - at)));
      }
    }
    first += file.size_bytes;
  }
}

Json describe(const DataSource& source) {
  if (!source.word.empty()) {
    return {{"is", source.word}};
  }
  std::vector<SourceFile> files;
  for (const std::string& location : source.locations) {
    append_files(source, location, files);
  }
  uint64_t bytes = 0;
  bool has_names = false;
  base::Digest names = base::Digest::sha256();
  base::Digest content = base::Digest::sha256();
  for (const SourceFile& file : files) {
    bytes += file.size_bytes;
    has_names = has_names || !file.name.empty();
    // Sizes also say where one file of several ends.
    names.add(fmt::format("{} {}\n", file.size_bytes, file.name));
  }
  if (bytes <= kWholeBytes) {
    add_range(content, files, 0, bytes);
  } else {
    for (uint64_t i = 0; i < kNumBlocks; ++i) {
      // Divided first: the product of a large file's size and a block's number may not fit.
      const uint64_t last = bytes - kBlockBytes;
      const uint64_t step = last / (kNumBlocks - 1);
      add_range(content, files, i + 1 == kNumBlocks ? last : i * step, kBlockBytes);
    }
  }
  Json json{{"files", files.size()}, {"bytes", bytes}};
  if (has_names || files.size() > 1) {
    json["names"] = hex_of(std::move(names));
  }
  json["content"] = hex_of(std::move(content));
  return json;
}

void add(base::Digest& digest, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return;
  }
  const at::Tensor plain = tensor.to(at::kCPU).contiguous();
  digest.add(
      fmt::format("{} [{}]\n", toString(plain.scalar_type()), fmt::join(plain.sizes(), ", ")));
  digest.add(std::span(static_cast<const std::byte*>(plain.const_data_ptr()), plain.nbytes()));
}

constexpr size_t kSampleDigits = 2 * kDigits;  // the two fields, then the tensors with other names

std::string sample_digest(const Dataset& data, int64_t index) {
  const SampleKey key{.index = index, .seed = 0};
  const Batch batch = data.batch(std::span(&key, 1));
  base::Digest fields = base::Digest::sha256();
  add(fields, batch.input);
  add(fields, batch.target);
  base::Digest more = base::Digest::sha256();
  for (const auto& [name, tensor] : batch.more) {
    more.add(name + "\n");
    add(more, tensor);
  }
  return hex_of(std::move(fields)) + hex_of(std::move(more));
}

// Collective.
Json describe(const Dataset& data, Group& group) {
  const int64_t size = data.size();
  const int64_t count = std::min(size, kNumSamples);
  std::string mine;  // digests of every size()-th sample
  const auto error = comm::caught([&] {
    for (int64_t i = group.rank(); i < count; i += group.size()) {
      const int64_t index = i + 1 == count ? size - 1 : i * (size / count);
      const std::string digest = sample_digest(data, index);
      mine += sample_digest(data, index) == digest ? digest : std::string(kSampleDigits, '?');
    }
  });
  comm::throw_together(group, error);
  const std::vector<std::string> all = comm::gather_texts(group, mine);
  base::Digest content = base::Digest::sha256();
  base::Digest more = base::Digest::sha256();
  bool is_known = true;
  for (int64_t i = 0; i < count; ++i) {
    const auto rank = static_cast<size_t>(i % group.size());
    const std::string digest =
        all[rank].substr(static_cast<size_t>(i / group.size()) * kSampleDigits, kSampleDigits);
    is_known = is_known && digest.front() != '?';
    content.add(digest.substr(0, kDigits));
    more.add(digest.substr(kDigits));
  }
  Json json{{"samples", size}};
  if (is_known) {
    json["content"] = hex_of(std::move(content));
    json["more"] = hex_of(std::move(more));
  }
  return json;
}

// What `then` can be compared with: fingerprints of older versions do not cover tensors with other
// names than input and target.
Json comparable(const Json& then, Json now) {
  if (then.is_object() && !then.contains("more") && now.is_object()) {
    now.erase("more");
  }
  return now;
}

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// Says what changed in one source.
std::string difference(const std::string& key, const Json& then, const Json& now) {
  for (const char* what : {"files", "bytes", "samples"}) {
    if (then.contains(what) && now.contains(what) && then[what] != now[what]) {
      return fmt::format("{} had {} {} and has {} now", key, text_of(then[what]), what,
                         text_of(now[what]));
    }
  }
  if (then.contains("is") || now.contains("is")) {
    const auto shown = [](const Json& json) {
      return json.contains("is") ? fmt::format("\"{}\"", text_of(json["is"])) : "files";
    };
    return fmt::format("{} was {} and is {} now", key, shown(then), shown(now));
  }
  if (then.contains("names") && now.contains("names") && then["names"] != now["names"]) {
    return fmt::format("the files of {} have other names or sizes now", key);
  }
  if (then.contains("more") && now.contains("more") && then["content"] == now["content"]) {
    return fmt::format(
        "the tensors of {} besides input and target are others now, or have other names", key);
  }
  return fmt::format("{} is as long as before, but its content is another now", key);
}

}  // namespace

std::string fingerprint_sources(const std::vector<DataSource>& sources, Group& group) {
  std::string text;
  comm::throw_together(group, comm::caught([&] {
                         if (group.rank() != 0) {
                           return;
                         }
                         Json json = Json::object();
                         for (const DataSource& source : sources) {
                           if (!source.locations.empty() || !source.word.empty()) {
                             json[source.key] = describe(source);
                           }
                         }
                         text = json.dump();
                       }));
  return comm::broadcast_text(group, text);
}

std::string fingerprint_samples(const TrainerData& data, Group& group) {
  Json json{{"train", describe(*data.train, group)}};
  if (data.held_out) {
    json["held_out"] = describe(*data.held_out, group);
  }
  return json.dump();
}

std::string fingerprint_difference(const std::string& then_text, const std::string& now_text) {
  if (then_text == now_text) {
    return "";
  }
  const Json then = Json::parse(then_text, nullptr, /*allow_exceptions=*/false);
  const Json now = Json::parse(now_text, nullptr, /*allow_exceptions=*/false);
  if (!then.is_object() || !now.is_object()) {
    return "their fingerprints differ";
  }
  for (const auto& [key, value] : now.items()) {
    if (!then.contains(key)) {
      return fmt::format("there was no {}, and there is one now", key);
    }
    if (const Json compared = comparable(then[key], value); then[key] != compared) {
      return difference(key, then[key], compared);
    }
  }
  for (const auto& [key, value] : then.items()) {
    if (!now.contains(key)) {
      return fmt::format("there was a {}, and there is none now", key);
    }
  }
  return "";
}

}  // namespace lockstep::train
