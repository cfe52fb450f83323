#include <algorithm>
#include <filesystem>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint_files/verify.h>

#include "checkpoint_files/checkpoint_list.h"
#include "inspect.h"
#include "storage/storage.h"

namespace lockstep::app {

namespace {

using Json = nlohmann::ordered_json;
using Rows = std::vector<std::vector<std::string>>;

std::string time_text(int64_t seconds) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(static_cast<time_t>(seconds)));
}

std::string score_text(const checkpoint_files::Manifest& manifest) {
  return manifest.score ? fmt::format("{}", *manifest.score) : "-";
}

std::string state_of(const checkpoint_files::ListedCheckpoint& entry,
                     const std::vector<CheckpointCheck>& checks) {
  const auto check = std::find_if(checks.begin(), checks.end(), [&](const CheckpointCheck& one) {
    return one.path == entry.path;
  });
  const std::string& problem = check == checks.end() ? entry.problem : check->problem;
  return !problem.empty() ? problem : check == checks.end() ? "not read" : "verified";
}

std::string folder_text(const checkpoint_files::CheckpointList& list,
                        const std::vector<CheckpointCheck>& checks) {
  Rows rows{{"CHECKPOINT", "STEP", "SIZE", "SCORE", "SAVED", "STATE"}};
  for (const checkpoint_files::ListedCheckpoint& entry : list.entries) {
    const bool is_known = entry.problem.empty();
    rows.push_back({base::escaped(entry.path), std::to_string(entry.step),
                    is_known ? size_text(entry.manifest.shard_bytes()) : "-",
                    score_text(entry.manifest),
                    is_known ? time_text(entry.manifest.created_s) : "-",
                    base::escaped(state_of(entry, checks))});
  }
  return aligned(rows);
}

std::string single_text(const checkpoint_files::ListedCheckpoint& entry,
                        const std::vector<CheckpointCheck>& checks) {
  const checkpoint_files::Manifest& manifest = entry.manifest;
  uint64_t num_elements = 0;
  uint64_t bytes = 0;
  Rows rows{{"NAME", "TYPE", "SHAPE", "SIZE", "PIECES"}};
  for (const checkpoint_files::ManifestTensor& tensor : manifest.tensors) {
    const uint64_t size = formats::checked_bytes(tensor.dtype, tensor.shape).value_or(0);
    num_elements += formats::checked_elements(tensor.shape).value_or(0);
    bytes += size;
    rows.push_back({base::escaped(tensor.name), std::string(formats::name_of(tensor.dtype)),
                    fmt::format("[{}]", fmt::join(tensor.shape, ", ")), size_text(size),
                    std::to_string(tensor.pieces.size())});
  }
  std::string text = fmt::format(
      "{}: checkpoint of step {}, {} in {} shards, saved {}, score {}\n{} tensors, {} elements, "
      "{}; XXH3 of every shard: {}\n",
      base::escaped(entry.path), manifest.step, size_text(manifest.shard_bytes()),
      manifest.shards.size(), time_text(manifest.created_s), score_text(manifest),
      manifest.tensors.size(), num_elements, size_text(bytes),
      base::escaped(state_of(entry, checks)));
  for (const checkpoint_files::ManifestAttachment& attachment : manifest.attachments) {
    text += fmt::format("  attached: {}, {}\n", base::escaped(attachment.name),
                        size_text(attachment.stored.size_bytes));
  }
  for (const auto& [key, value] : manifest.values) {
    text += fmt::format("  {} = {}{}\n", base::escaped(key),
                        base::escaped(value.substr(0, kMaxValueWidth)),
                        value.size() > kMaxValueWidth ? "..." : "");
  }
  return text + aligned(rows);
}

Json entry_json(const checkpoint_files::ListedCheckpoint& entry, const CheckpointFlags& flags,
                const std::vector<CheckpointCheck>& checks) {
  const checkpoint_files::Manifest& manifest = entry.manifest;
  const std::string state = state_of(entry, checks);
  const bool is_good = state == "verified" || state == "not read";
  Json json{{"path", entry.path},
            {"step", entry.step},
            {"size_bytes", manifest.shard_bytes()},
            {"score", manifest.score ? Json(*manifest.score) : Json(nullptr)},
            {"saved_s", manifest.created_s},
            {"problem", is_good ? Json(nullptr) : Json(state)},
            {"is_verified", flags.verify && is_good},
            {"values", manifest.values},
            {"shards", Json::array()},
            {"attachments", Json::array()},
            {"tensors", Json::array()}};
  for (const checkpoint_files::ManifestShard& shard : manifest.shards) {
    json["shards"].push_back(
        {{"file", shard.file}, {"size_bytes", shard.size_bytes}, {"xxh3", shard.xxh3}});
  }
  for (const checkpoint_files::ManifestAttachment& attachment : manifest.attachments) {
    json["attachments"].push_back({{"name", attachment.name},
                                   {"file", attachment.stored.file},
                                   {"size_bytes", attachment.stored.size_bytes},
                                   {"xxh3", attachment.stored.xxh3}});
  }
  for (const checkpoint_files::ManifestTensor& tensor : manifest.tensors) {
    json["tensors"].push_back({{"name", tensor.name},
                               {"dtype", formats::name_of(tensor.dtype)},
                               {"shape", tensor.shape},
                               {"num_pieces", tensor.pieces.size()}});
  }
  return json;
}

// Of a bucket: a manifest right there, or in a folder that is named after a step.
bool holds_checkpoints(const std::string& location) {
  const auto storage = storage::open_storage(location);
  if (storage->find(std::string(checkpoint_files::kManifestFile))) {
    return true;
  }
  const auto objects = storage->list("step-");
  return std::any_of(objects.begin(), objects.end(), [](const storage::ObjectInfo& object) {
    return checkpoint_files::step_of(object.path.substr(0, object.path.find('/'))).has_value();
  });
}

}  // namespace

bool is_checkpoint(const std::string& location) {
  namespace fs = std::filesystem;
  const std::string name = fs::path(location).filename().string();
  const bool is_pointer = name == "latest" || name == "best";
  if (storage::is_remote(location)) {
    return is_pointer || checkpoint_files::step_of(name) ||
           (storage::is_folder(location) && holds_checkpoints(location));
  }
  if (is_pointer && fs::is_regular_file(location)) {
    return true;
  }
  if (!fs::is_directory(location)) {
    return false;
  }
  if (fs::exists(fs::path(location) / checkpoint_files::kManifestFile) ||
      checkpoint_files::step_of(name)) {
    return true;
  }
  return std::any_of(
      fs::directory_iterator(location), fs::directory_iterator(), [](const auto& entry) {
        return checkpoint_files::step_of(entry.path().filename().string()).has_value();
      });
}

int inspect_checkpoint(const std::string& location, const CheckpointFlags& flags) {
  const checkpoint_files::CheckpointList list = checkpoint_files::list_checkpoints(location);
  const auto checks = flags.verify ? verify_checkpoints(location) : std::vector<CheckpointCheck>();
  if (list.entries.empty()) {
    throw UsageError("{}: no checkpoint is there", location);
  }
  if (flags.as_json) {
    Json json{{"location", location}, {"checkpoints", Json::array()}};
    for (const checkpoint_files::ListedCheckpoint& entry : list.entries) {
      json["checkpoints"].push_back(entry_json(entry, flags, checks));
    }
    fmt::print("{}\n", json.dump(2, ' ', true, Json::error_handler_t::replace));
  } else {
    fmt::print("{}",
               list.is_single ? single_text(list.entries[0], checks) : folder_text(list, checks));
  }
  const bool is_good =
      std::all_of(
          list.entries.begin(), list.entries.end(),
          [](const checkpoint_files::ListedCheckpoint& entry) { return entry.problem.empty(); }) &&
      std::all_of(checks.begin(), checks.end(),
                  [](const CheckpointCheck& check) { return check.problem.empty(); });
  return is_good ? 0 : 1;
}

}  // namespace lockstep::app
