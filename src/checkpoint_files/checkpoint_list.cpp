#include "checkpoint_files/checkpoint_list.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <sys/mman.h>
#include <tuple>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint_files/verify.h>

#include "base/hash.h"
#include "base/unique_fd.h"
#include "checkpoint_files/own_files.h"
#include "formats/tensor_info.h"
#include "storage/location.h"
#include "storage/parallel_read.h"

namespace lockstep::checkpoint_files {

namespace {

constexpr std::string_view kStepPrefix = "step-";
constexpr uint64_t kMaxManifestBytes = 256u << 20;
constexpr size_t kReadBytes = 8u << 20;
constexpr int kRemoteReads = 8;  // requests under way

std::string name_in(const std::string& location) {
  std::string trimmed = location;
  while (trimmed.ends_with('/')) {
    trimmed.pop_back();
  }
  return trimmed.substr(trimmed.rfind('/') + 1);
}

// `latest` and `best` hold a name beside them.
std::string followed(const std::string& location) {
  const std::string name = name_in(location);
  if (name != kLatestFile && name != kBestFile) {
    return location;
  }
  const size_t slash = location.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : location.substr(0, slash);
  const auto storage = storage::open_storage(folder);
  const auto found = storage->find(name);
  if (!found) {
    return location;
  }
  constexpr uint64_t kMaxNameBytes = 100;
  const auto source = storage->open(name);
  std::string text = source->read_text(0, std::min(source->size(), kMaxNameBytes));
  text.erase(text.find_last_not_of(" \n") + 1);
  if (!step_of(text)) {
    throw FormatError("{}: {} is no name of a checkpoint", location, base::shown(text));
  }
  return joined_location(folder, text);
}

ListedCheckpoint read_entry(const storage::Storage& storage, const std::string& file,
                            const std::string& path) {
  ListedCheckpoint entry{.path = path, .step = step_of(name_in(path)).value_or(-1)};
  try {
    const auto source = storage.open(file);
    if (source->size() > kMaxManifestBytes) {
      throw FormatError("{}: {} bytes, the limit is {}", source->name(), source->size(),
                        kMaxManifestBytes);
    }
    entry.text = source->read_text(0, source->size());
    entry.manifest = parse_manifest(source->name(), entry.text);
    entry.step = entry.manifest.step;
  } catch (const FormatError& error) {
    entry.problem = error.what();
  } catch (const IoError& error) {
    entry.problem = error.what();
  }
  return entry;
}

bool is_newer(const ListedCheckpoint& a, const ListedCheckpoint& b) {
  const auto key = [](const ListedCheckpoint& entry) {
    return std::tuple(!entry.problem.empty(), entry.manifest.sequence, entry.step);
  };
  return key(a) > key(b);
}

std::string manifest_path(const std::string& name) {
  return fmt::format("{}/{}", name, kManifestFile);
}

// Names of the folders that are committed checkpoints, or have shards and lost their manifest.
std::vector<std::string> checkpoint_names(const storage::Storage& storage) {
  std::vector<std::string> names;
  for (const storage::ObjectInfo& object : storage.list(std::string(kStepPrefix))) {
    const std::string name = object.path.substr(0, object.path.find('/'));
    if (step_of(name) && name.size() < object.path.size() &&
        is_own_file(object.path.substr(name.size() + 1)) &&
        (names.empty() || names.back() != name)) {
      names.push_back(name);
    }
  }
  return names;
}

}  // namespace

std::string checkpoint_name(int64_t step) {
  return fmt::format("{}{:08}", kStepPrefix, step);
}

std::optional<int64_t> step_of(std::string_view name) {
  int64_t step = 0;
  if (!name.starts_with(kStepPrefix)) {
    return std::nullopt;
  }
  const auto [end, error] =
      std::from_chars(name.data() + kStepPrefix.size(), name.data() + name.size(), step);
  const bool is_step = error == std::errc() && step >= 0 && checkpoint_name(step) == name;
  return is_step && end == name.data() + name.size() ? std::optional(step) : std::nullopt;
}

std::string joined_location(const std::string& folder, const std::string& name) {
  return folder.ends_with('/') ? folder + name : folder + "/" + name;
}

void check_pointers(const std::string& location) {
  constexpr uint64_t kMaxPointerBytes = 64;
  const storage::Location place = storage::parse_location(location);
  if (!place.is_s3 && !std::filesystem::exists(place.path)) {
    return;
  }
  const auto storage = storage::open_storage(location);
  for (const char* pointer : {kLatestFile, kBestFile}) {
    std::error_code ignored;
    const auto type =
        std::filesystem::symlink_status(joined_location(place.path, pointer), ignored);
    bool is_own =
        place.is_s3 || !std::filesystem::exists(type) || std::filesystem::is_regular_file(type);
    if (const auto found = storage->find(pointer); is_own && found) {
      std::string text = found->size_bytes > kMaxPointerBytes
                             ? "too long"
                             : storage->open(pointer)->read_text(0, found->size_bytes);
      text.resize(text.find_last_not_of('\n') + 1);
      is_own = text.empty() || step_of(text);
    }
    if (!is_own) {
      throw UsageError(
          "checkpoint: lockstep has not written {}, and a save would replace it by the name of a "
          "checkpoint; move it away, or set checkpoint.dir to another place",
          joined_location(location, pointer));
    }
  }
}

CheckpointList list_checkpoints(const std::string& given) {
  const std::string location = followed(given);
  const storage::Location place = storage::parse_location(location);
  if (!place.is_s3 && !std::filesystem::exists(place.path)) {
    return {};
  }
  const auto storage = storage::open_storage(location);
  if (storage->find(std::string(kManifestFile))) {
    return {.is_single = true,
            .entries = {read_entry(*storage, std::string(kManifestFile), location)}};
  }
  if (step_of(name_in(location))) {
    throw IoError("{}: no {} in it: this checkpoint was never committed", location, kManifestFile);
  }
  CheckpointList list;
  for (const std::string& name : checkpoint_names(*storage)) {
    // On S3, shards without a manifest are what a save left that did not end. A folder gets its
    // name last, so that there is no such folder.
    if (!place.is_s3 || storage->find(manifest_path(name))) {
      list.entries.push_back(
          read_entry(*storage, manifest_path(name), joined_location(location, name)));
    }
  }
  std::sort(list.entries.begin(), list.entries.end(), is_newer);
  return list;
}

void verify_file(const std::string& path, const Manifest& manifest, size_t which) {
  const ManifestShard& shard = manifest.file(which);
  const std::string file = joined_location(path, shard.file);
  const auto source = storage::open_direct_source(file);
  if (source->size() != shard.size_bytes) {
    throw FormatError("{}: {} bytes, and {} were written", file, source->size(), shard.size_bytes);
  }
  // Aligned to pages, as reads past the page cache need it.
  const base::Mapping memory(-1, kReadBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
  const storage::ReadOptions reads{
      .num_threads = storage::is_remote(path) ? kRemoteReads : 1,
      .chunk_bytes = storage::is_remote(path) ? kReadBytes / kRemoteReads : kReadBytes};
  base::Xxh3 hash;
  for (uint64_t offset = 0; offset < shard.size_bytes; offset += kReadBytes) {
    const std::span<std::byte> bytes(memory.data(),
                                     std::min<uint64_t>(kReadBytes, shard.size_bytes - offset));
    storage::read_parallel(*source, offset, bytes, reads);
    hash.add(bytes);
  }
  if (const std::string found = hash.hex(); found != shard.xxh3) {
    throw FormatError("{}: damaged: its XXH3 is {}, and {} was written", file, found, shard.xxh3);
  }
}

std::string damage_of(const std::string& path) {
  try {
    const CheckpointList list = list_checkpoints(path);
    if (!list.is_single || !list.entries[0].problem.empty()) {
      return list.is_single ? list.entries[0].problem : path + ": there is no manifest";
    }
    const Manifest& manifest = list.entries[0].manifest;
    for (size_t i = 0; i < manifest.num_files(); ++i) {
      const ManifestShard& file = manifest.file(i);
      if (!storage::is_remote(path)) {
        verify_file(path, manifest, i);
      } else if (const auto found = storage::find_file(joined_location(path, file.file));
                 !found || found->size_bytes != file.size_bytes) {
        return fmt::format("{}: {} bytes, and {} were written", joined_location(path, file.file),
                           found ? found->size_bytes : 0, file.size_bytes);
      }
    }
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace lockstep::checkpoint_files

namespace lockstep {

std::vector<CheckpointCheck> verify_checkpoints(const std::string& location) {
  std::vector<CheckpointCheck> checks;
  for (const checkpoint_files::ListedCheckpoint& entry :
       checkpoint_files::list_checkpoints(location).entries) {
    CheckpointCheck check{.path = entry.path,
                          .step = entry.step,
                          .bytes = entry.manifest.shard_bytes(),
                          .problem = entry.problem};
    for (size_t i = 0; i < entry.manifest.num_files() && check.problem.empty(); ++i) {
      try {
        checkpoint_files::verify_file(entry.path, entry.manifest, i);
      } catch (const FormatError& error) {
        check.problem = error.what();
      } catch (const IoError& error) {
        check.problem = error.what();
      }
    }
    checks.push_back(std::move(check));
  }
  return checks;
}

}  // namespace lockstep
