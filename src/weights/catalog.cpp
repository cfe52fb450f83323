#include "weights/catalog.h"

#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "formats/sharded_index.h"
#include "formats/weight_set.h"
#include "storage/storage.h"
#include "weights/scalar_type.h"

namespace lockstep::weights {

namespace {

using Json = nlohmann::json;

constexpr std::string_view kIndexEnd = ".index.json";

std::string name_in_folder(const std::string& location) {
  return location.substr(location.rfind('/') + 1);
}

Json to_json(const formats::TensorInfo& info, size_t file) {
  return {info.name,         static_cast<int>(info.dtype),
          info.shape,        info.strides,
          info.offset_bytes, info.size_bytes,
          info.storage,      file};
}

CatalogTensor tensor_of(const Json& json) {
  return {.info = {.name = json.at(0).get<std::string>(),
                   .dtype = static_cast<formats::DType>(json.at(1).get<int>()),
                   .shape = json.at(2).get<std::vector<int64_t>>(),
                   .strides = json.at(3).get<std::vector<int64_t>>(),
                   .offset_bytes = json.at(4).get<uint64_t>(),
                   .size_bytes = json.at(5).get<uint64_t>(),
                   .storage = json.at(6).get<int64_t>()},
          .file = json.at(7).get<size_t>()};
}

}  // namespace

void WeightCatalog::finish() {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const formats::TensorInfo& info = tensors[i].info;
    const at::ScalarType type = scalar_type_of(info.dtype);
    const auto bytes = formats::checked_bytes(info.dtype, info.shape);
    if (!bytes) {
      throw FormatError("{}: tensor {}, {}, has no size", files[tensors[i].file].location,
                        base::shown(info.name), formats::to_string(info.dtype, info.shape));
    }
    infos.push_back(
        {.name = info.name,
         .dtype = type,
         .shape = info.shape,
         .bytes = type == at::ScalarType::Undefined ? 0 : static_cast<int64_t>(*bytes)});
    const auto [place, is_new] = index.emplace(info.name, i);
    if (!is_new) {
      throw FormatError("{}: tensor {} is in {} and in {}", location, base::shown(info.name),
                        files[tensors[place->second].file].location,
                        files[tensors[i].file].location);
    }
  }
}

std::vector<std::string> find_weight_files(const std::string& location) {
  std::string file = location;
  if (storage::is_folder(location)) {
    const auto storage = storage::open_storage(location);
    file = formats::find_model_file(
        location, [&](const char* name) { return storage->find(name).has_value(); });
  }
  if (!file.ends_with(kIndexEnd)) {
    return {file};
  }
  const std::string folder = file.substr(0, file.rfind('/') + 1);
  const formats::ShardedIndex index = formats::read_sharded_index(*storage::open_source(file));
  std::vector<std::string> files{file};
  for (const std::string& shard : index.shards) {
    files.push_back(folder + shard);
  }
  return files;
}

WeightCatalog read_catalog(const std::string& location, const std::vector<std::string>& files,
                           const std::vector<std::string>& opened) {
  WeightCatalog catalog{.location = location};
  std::optional<formats::ShardedIndex> index;
  for (size_t i = 0; i < files.size(); ++i) {
    const auto source = storage::open_source(opened[i]);
    if (files[i].ends_with(kIndexEnd)) {
      index = formats::read_sharded_index(*source);
      continue;
    }
    formats::WeightFile file = formats::read_weight_file(*source);
    if (index) {
      formats::check_shard(*index, name_in_folder(files[i]), file.tensors);
    }
    for (formats::TensorInfo& info : file.tensors) {
      catalog.tensors.push_back({.info = std::move(info), .file = catalog.files.size()});
    }
    catalog.metadata.merge(file.metadata);
    catalog.files.push_back({.location = files[i],
                             .opened = opened[i],
                             .size_bytes = source->size(),
                             .checksums = std::move(file.checksums)});
  }
  catalog.finish();
  return catalog;
}

std::vector<uint8_t> to_bytes(const WeightCatalog& catalog) {
  Json files = Json::array();
  for (const CatalogFile& file : catalog.files) {
    Json checksums = Json::array();
    for (const formats::WeightChecksum& sum : file.checksums) {
      checksums.push_back({sum.record, sum.offset_bytes, sum.size_bytes, sum.crc});
    }
    files.push_back({file.location, file.opened, file.size_bytes, std::move(checksums)});
  }
  Json tensors = Json::array();
  for (const CatalogTensor& tensor : catalog.tensors) {
    tensors.push_back(to_json(tensor.info, tensor.file));
  }
  return Json::to_msgpack({{"location", catalog.location},
                           {"files", std::move(files)},
                           {"tensors", std::move(tensors)},
                           {"metadata", catalog.metadata}});
}

WeightCatalog catalog_of(const std::vector<uint8_t>& bytes) {
  const Json json = Json::from_msgpack(bytes);
  WeightCatalog catalog{.location = json.at("location").get<std::string>()};
  catalog.metadata = json.at("metadata").get<std::map<std::string, std::string>>();
  for (const Json& item : json.at("files")) {
    CatalogFile file{.location = item.at(0).get<std::string>(),
                     .opened = item.at(1).get<std::string>(),
                     .size_bytes = item.at(2).get<uint64_t>(),
                     .checksums = {}};
    for (const Json& sum : item.at(3)) {
      file.checksums.push_back({.record = sum.at(0).get<std::string>(),
                                .offset_bytes = sum.at(1).get<uint64_t>(),
                                .size_bytes = sum.at(2).get<uint64_t>(),
                                .crc = sum.at(3).get<uint32_t>()});
    }
    catalog.files.push_back(std::move(file));
  }
  for (const Json& item : json.at("tensors")) {
    catalog.tensors.push_back(tensor_of(item));
  }
  catalog.finish();
  return catalog;
}

std::unique_ptr<base::ByteSource> open_file_of(const CatalogFile& file, ReadsBy reads_by) {
  auto source = reads_by == ReadsBy::OneRank ? storage::open_direct_source(file.opened)
                                             : storage::open_source(file.opened);
  if (source->size() != file.size_bytes) {
    throw IoError(
        "cannot read {}: it has {} bytes now and had {} when its headers were read; does another "
        "process write it?",
        file.location, source->size(), file.size_bytes);
  }
  return source;
}

}  // namespace lockstep::weights
