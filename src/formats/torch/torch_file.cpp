#include "formats/torch/torch_file.h"

#include <algorithm>
#include <unordered_set>

#include <lockstep/base/error.h>

#include "formats/weight_file.h"

namespace lockstep::formats {

namespace {

using Kind = PickleValue::Kind;

// An expanded tensor (stride 0) is legal and a few bytes can claim to be terabytes.
constexpr uint64_t kMaxUnfolding = 64;
constexpr uint64_t kFreeBytes = 64u << 20;
constexpr size_t kMaxTensors = 200'000;
constexpr size_t kMaxNameBytes = 4096;

// torch leaves any stride to a dimension of one element.
bool is_contiguous(const PickledTensor& tensor) {
  const std::vector<int64_t> wanted = contiguous_strides(tensor.shape);
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (tensor.shape[i] > 1 && tensor.strides[i] != wanted[i]) {
      return false;
    }
  }
  return true;
}

class Placement {
 public:
  Placement(const base::ByteSource& source, const std::vector<PickledTensor>& tensors,
            TorchFile& file)
      : source_(source), tensors_(tensors), file_(file) {}

  void walk(PickleValue& value, const std::string& path) {
    if (path.size() > kMaxNameBytes || file_.tensors.size() > kMaxTensors) {
      throw FormatError("{}: a name of {} bytes or {} tensors; the limits are {} and {}",
                        source_.name(), path.size(), file_.tensors.size(), kMaxNameBytes,
                        kMaxTensors);
    }
    if (value.kind == Kind::Tensor) {
      place(value, path);
    }
    const bool is_dict = value.kind == Kind::Dict;
    for (size_t i = is_dict ? 1 : 0; i < value.items.size(); i += is_dict ? 2 : 1) {
      const std::string name = is_dict ? key_name(value.items[i - 1]) : std::to_string(i);
      walk(value.items[i], path.empty() ? name : path + "." + name);
    }
  }

 private:
  static std::string key_name(const PickleValue& key) {
    return key.kind == Kind::String ? key.text : std::to_string(key.integer);
  }

  void place(PickleValue& value, const std::string& path) {
    const PickledTensor& tensor = tensors_[static_cast<size_t>(value.integer)];
    const TorchStorage& storage = file_.storages[tensor.storage];
    const auto element_bytes = static_cast<uint64_t>(bits_of(tensor.dtype)) / 8;
    TensorInfo info{.name = path,
                    .dtype = tensor.dtype,
                    .shape = tensor.shape,
                    .offset_bytes = storage.offset_bytes + tensor.offset * element_bytes,
                    .storage = static_cast<int64_t>(tensor.storage)};
    const uint64_t logical_bytes = *checked_bytes(tensor.dtype, tensor.shape);
    uint64_t elements = logical_bytes == 0 ? 0 : 1;
    for (size_t i = 0; elements != 0 && i < tensor.shape.size(); ++i) {
      elements +=
          static_cast<uint64_t>(tensor.shape[i] - 1) * static_cast<uint64_t>(tensor.strides[i]);
    }
    info.size_bytes = elements * element_bytes;
    if (!is_contiguous(tensor)) {
      info.strides = tensor.strides;
    }
    if (!names_.insert(path).second) {
      throw FormatError("{}: two tensors are named {}", source_.name(), base::shown(path));
    }
    const auto sum = checked_add(total_bytes_, logical_bytes);
    if (!sum || *sum / kMaxUnfolding > source_.size() + kFreeBytes / kMaxUnfolding) {
      throw FormatError(
          "{}: tensor {}: {} and those before it are more than {} times the file's {} "
          "bytes",
          source_.name(), base::shown(path), to_string(info.dtype, info.shape), kMaxUnfolding,
          source_.size());
    }
    total_bytes_ = *sum;
    value.integer = static_cast<int64_t>(file_.tensors.size());
    file_.tensors.push_back(std::move(info));
  }

  const base::ByteSource& source_;
  const std::vector<PickledTensor>& tensors_;
  TorchFile& file_;
  std::unordered_set<std::string> names_;
  uint64_t total_bytes_ = 0;
};

}  // namespace

TorchFile place_tensors(const base::ByteSource& source, Pickle pickle,
                        std::vector<TorchStorage> storages) {
  TorchFile file{.root = std::move(pickle.root), .storages = std::move(storages)};
  Placement(source, pickle.tensors, file).walk(file.root, "");
  return file;
}

void check_little_endian(const base::ByteSource& source, const PickleValue& system) {
  const PickleValue* little = system.find("little_endian");
  if (little == nullptr || little->kind != Kind::Bool || little->integer == 0) {
    throw FormatError("{}: it was saved on a big-endian machine; save it on a little-endian one",
                      source.name());
  }
}

TorchFile read_torch(const base::ByteSource& source) {
  const std::optional<WeightFormat> format = detect_weight_format(source);
  if (format == WeightFormat::TorchZip) {
    return read_torch_zip(source);
  }
  if (format == WeightFormat::TorchLegacy) {
    return read_torch_legacy(source);
  }
  if (format == WeightFormat::TorchTar) {
    return read_torch_tar(source);
  }
  throw FormatError("{}: not a file of torch.save: its first bytes are those of no known container",
                    source.name());
}

}  // namespace lockstep::formats
