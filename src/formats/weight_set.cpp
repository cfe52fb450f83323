#include "formats/weight_set.h"

#include <filesystem>
#include <map>
#include <tuple>
#include <unordered_map>

#include <fmt/ranges.h>

#include <lockstep/base/error.h>

#include "formats/archive/inflate_npz.h"
#include "formats/sharded_index.h"

namespace lockstep::formats {

namespace {

constexpr std::string_view kIndexSuffix = ".index.json";
constexpr const char* kModelFiles[] = {"model.safetensors", "model.safetensors.index.json",
                                       "pytorch_model.bin", "pytorch_model.bin.index.json"};

std::string folder_of(const std::string& location) {
  const size_t slash = location.rfind('/');
  return slash == std::string::npos ? "" : location.substr(0, slash + 1);
}

// A tensor that lies where one before it lies, in the same form, is that one.
void find_ties(WeightSet& set) {
  using Place = std::tuple<size_t, uint64_t, DType, std::vector<int64_t>, std::vector<int64_t>>;
  std::map<Place, size_t> first_at;
  for (size_t i = 0; i < set.entries.size(); ++i) {
    WeightEntry& entry = set.entries[i];
    const TensorInfo& tensor = entry.tensor;
    if (entry.tied_to || tensor.storage < 0 || tensor.size_bytes == 0) {
      continue;
    }
    const auto [place, is_new] = first_at.emplace(
        Place{entry.part, tensor.offset_bytes, tensor.dtype, tensor.shape, tensor.strides}, i);
    if (!is_new) {
      entry.tied_to = place->second;
    }
  }
}

// What the writers of safetensors note for tensors that shared memory.
void add_noted_ties(WeightSet& set) {
  std::unordered_map<std::string, size_t> by_name;
  for (size_t i = 0; i < set.entries.size(); ++i) {
    by_name.emplace(set.entries[i].tensor.name, i);
  }
  for (const WeightPart& part : set.parts) {
    for (const auto& [name, kept] : part.file.metadata) {
      const auto found = by_name.find(kept);
      if (found == by_name.end() || by_name.contains(name)) {
        continue;
      }
      WeightEntry tied = set.entries[found->second];
      tied.tensor.name = name;
      tied.tied_to = found->second;
      by_name.emplace(name, set.entries.size());
      set.entries.push_back(std::move(tied));
    }
  }
}

void add_part(WeightSet& set, std::string location, const SourceOpener& open) {
  WeightPart part{.location = std::move(location)};
  part.source = open(part.location);
  part.file_bytes = part.source->size();
  part.source = inflate_npz(std::move(part.source));
  part.file = read_weight_file(*part.source);
  for (const TensorInfo& tensor : part.file.tensors) {
    set.entries.push_back({.tensor = tensor, .part = set.parts.size()});
    if (tensor.name.empty()) {
      set.entries.back().tensor.name = std::filesystem::path(part.location).stem().string();
    }
  }
  set.parts.push_back(std::move(part));
}

}  // namespace

std::string find_model_file(const std::string& folder,
                            const std::function<bool(const char* name)>& has) {
  for (const char* name : kModelFiles) {
    if (has(name)) {
      return folder.ends_with('/') ? folder + name : folder + "/" + name;
    }
  }
  throw UsageError("{}: none of {} is in this folder; name the file itself", folder,
                   fmt::join(kModelFiles, ", "));
}

WeightSet open_weight_set(const std::string& location, const SourceOpener& open) {
  WeightSet set;
  if (location.ends_with(kIndexSuffix)) {
    const ShardedIndex index = read_sharded_index(*open(location));
    set.total_size = index.total_size;
    for (const std::string& shard : index.shards) {
      add_part(set, folder_of(location) + shard, open);
      check_shard(index, shard, set.parts.back().file.tensors);
    }
  } else {
    add_part(set, location, open);
  }
  find_ties(set);
  add_noted_ties(set);
  return set;
}

}  // namespace lockstep::formats
