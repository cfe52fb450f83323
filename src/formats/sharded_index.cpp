#include "formats/sharded_index.h"

#include <set>

#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "base/strict_json.h"

namespace lockstep::formats {

namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxIndexBytes = 100'000'000;

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string("/\\\0", 3)) == std::string::npos;
}

}  // namespace

ShardedIndex read_sharded_index(const base::ByteSource& source) {
  const std::string& file = source.name();
  if (source.size() > kMaxIndexBytes) {
    throw FormatError("{}: an index of {} bytes is above the limit of {}", file, source.size(),
                      kMaxIndexBytes);
  }
  const Json json = base::parse_strict_json(file, source.read_text(0, source.size()));
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    throw FormatError("{}: the index has no object \"weight_map\"", file);
  }
  ShardedIndex index;
  std::set<std::string> shards;
  for (const auto& [name, shard] : json["weight_map"].items()) {
    if (!shard.is_string() || !is_plain_name(shard.get<std::string>())) {
      throw FormatError(
          "{}: tensor {}: the index puts it into {}, which is not a file of its folder", file,
          base::shown(name), base::shown(shard.dump()));
    }
    index.shard_of.emplace(name, shard);
    shards.insert(shard.get<std::string>());
  }
  index.shards.assign(shards.begin(), shards.end());
  if (json.contains("metadata") && json["metadata"].is_object()) {
    const Json& metadata = json["metadata"];
    if (metadata.contains("total_size") && metadata["total_size"].is_number_unsigned()) {
      index.total_size = metadata["total_size"].get<uint64_t>();
    }
  }
  return index;
}

void check_shard(const ShardedIndex& index, const std::string& shard,
                 const std::vector<TensorInfo>& tensors) {
  std::set<std::string_view> held;
  for (const TensorInfo& tensor : tensors) {
    held.insert(tensor.name);
    const auto place = index.shard_of.find(tensor.name);
    if (place != index.shard_of.end() && place->second != shard) {
      throw FormatError("{}: it holds tensor {}, which the index puts into {}", shard,
                        base::shown(tensor.name), place->second);
    }
  }
  for (const auto& [name, place] : index.shard_of) {
    if (place == shard && !held.contains(name)) {
      throw FormatError("{}: the index puts tensor {} here, but it is not there", shard,
                        base::shown(name));
    }
  }
}

}  // namespace lockstep::formats
