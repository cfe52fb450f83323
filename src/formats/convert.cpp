#include "formats/convert.h"

#include <unordered_map>

#include <lockstep/base/error.h>

#include "formats/safetensors.h"
#include "formats/tensor_reader.h"
#include "formats/torch/torch_file.h"
#include "formats/torch/torch_writer.h"

namespace lockstep::formats {

namespace {

using Kind = PickleValue::Kind;

bool is_torch(const WeightSet& set) {
  const WeightFormat format = set.parts.front().file.format;
  return set.parts.size() == 1 &&
         (format == WeightFormat::TorchZip || format == WeightFormat::TorchLegacy ||
          format == WeightFormat::TorchTar);
}

template <typename Writer>
void copy_tensor(const WeightSet& set, const WeightEntry& entry, Writer& writer) {
  TensorReader reader(*set.parts[entry.part].source, entry.tensor);
  for (auto piece = reader.next(); !piece.empty(); piece = reader.next()) {
    writer.append(piece);
  }
}

size_t num_plain_values(const PickleValue& value) {
  const bool is_dict = value.kind == Kind::Dict;
  const bool is_container =
      is_dict || value.kind == Kind::List || value.kind == Kind::Tuple || value.kind == Kind::Set;
  size_t count = !is_container && value.kind != Kind::Tensor ? 1 : 0;
  for (size_t i = is_dict ? 1 : 0; is_container && i < value.items.size(); i += is_dict ? 2 : 1) {
    count += num_plain_values(value.items[i]);
  }
  return count;
}

void write_safetensors(const WeightSet& set, const std::string& path, ConvertReport& report) {
  std::map<std::string, std::string> metadata;
  for (const WeightPart& part : set.parts) {
    metadata.insert(part.file.metadata.begin(), part.file.metadata.end());
  }
  metadata.emplace("format", "pt");  // transformers refuses a file that does not say for whom it is
  std::vector<TensorInfo> tensors;
  std::unordered_map<std::string, const WeightEntry*> by_name;
  for (const WeightEntry& entry : set.entries) {
    if (entry.tied_to) {
      metadata[entry.tensor.name] = set.entries[*entry.tied_to].tensor.name;
      continue;
    }
    tensors.push_back(entry.tensor);
    by_name.emplace(entry.tensor.name, &entry);
  }
  SafetensorsWriter writer(path, std::move(tensors), metadata);
  for (const TensorInfo& tensor : writer.tensors()) {
    copy_tensor(set, *by_name.at(tensor.name), writer);
  }
  writer.finish();
  if (is_torch(set)) {
    report.num_values_left_out = num_plain_values(read_torch(*set.parts.front().source).root);
  }
}

void write_torch(const WeightSet& set, const std::string& path) {
  PickleValue root{.kind = Kind::Dict};
  std::vector<PickledTensor> tensors;
  std::vector<PickledStorage> storages;
  std::vector<const WeightEntry*> written;
  for (const WeightEntry& entry : set.entries) {
    const TensorInfo& info = entry.tensor;
    root.items.push_back(PickleValue::of(info.name));
    root.items.push_back(PickleValue::of_tensor(tensors.size()));
    tensors.push_back({.storage = storages.size(),
                       .dtype = info.dtype,
                       .shape = info.shape,
                       .strides = contiguous_strides(info.shape)});
    if (entry.tied_to) {
      tensors.back().storage = tensors[*entry.tied_to].storage;
      continue;
    }
    storages.push_back({.key = std::to_string(storages.size()),
                        .size_bytes = *checked_bytes(info.dtype, info.shape),
                        .element_bytes = static_cast<uint64_t>(bits_of(info.dtype)) / 8});
    written.push_back(&entry);
  }
  if (is_torch(set)) {
    root = read_torch(*set.parts.front().source).root;  // its tensors are in the same order
  }
  TorchWriter writer(path, root, tensors, std::move(storages));
  for (const WeightEntry* entry : written) {
    writer.begin();
    copy_tensor(set, *entry, writer);
  }
  writer.finish();
}

}  // namespace

ConvertReport convert_weights(const WeightSet& set, const std::string& path) {
  ConvertReport report{.num_tensors = set.entries.size()};
  for (const WeightEntry& entry : set.entries) {
    report.num_views += entry.tensor.strides.empty() ? 0 : 1;
    if (entry.tied_to) {
      report.tied.push_back(entry.tensor.name);
    }
  }
  if (path.ends_with(".safetensors")) {
    write_safetensors(set, path, report);
  } else if (path.ends_with(".pth") || path.ends_with(".pt") || path.ends_with(".bin")) {
    write_torch(set, path);
  } else {
    throw UsageError("cannot write {}: its name must end in .safetensors, .pth, .pt or .bin", path);
  }
  report.size_bytes = base::FileSource(path).size();
  return report;
}

}  // namespace lockstep::formats
