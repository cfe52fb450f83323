#include <algorithm>
#include <optional>

#include <lockstep/base/error.h>
#include <lockstep/weights/save.h>

#include "device/memory.h"
#include "formats/safetensors.h"
#include "formats/torch/torch_writer.h"
#include "weights/device_reader.h"
#include "weights/scalar_type.h"

namespace lockstep {
namespace {

formats::DType dtype_of(const std::string& path, const NamedTensor& named) {
  if (!device::is_dense(named.tensor)) {
    throw UsageError("cannot write {}: tensor {} is not a dense tensor of the CPU or a GPU", path,
                     base::shown(named.name));
  }
  for (int i = 0; i <= static_cast<int>(formats::DType::C128); ++i) {
    if (weights::scalar_type_of(static_cast<formats::DType>(i)) == named.tensor.scalar_type()) {
      return static_cast<formats::DType>(i);
    }
  }
  throw UsageError("cannot write {}: no file format has the type {} of tensor {}", path,
                   toString(named.tensor.scalar_type()), base::shown(named.name));
}

// The bytes of tensors on any device, as if they were contiguous on the CPU.
class TensorBytes {
 public:
  explicit TensorBytes(const std::string& path) : user_("cannot write " + path) {}

  template <typename Writer>
  void append_to(Writer& writer, const at::Tensor& tensor) {
    const at::Device device = tensor.device();
    const at::Tensor dense =
        device::with_memory({.user = user_, .device = device, .bytes = tensor.nbytes()},
                            [&] { return tensor.detach().contiguous(); });
    if (!device::needs_copies(device)) {
      writer.append({static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()});
      return;
    }
    if (!reader_ || reader_->device() != device) {
      reader_.emplace(device, user_);
    }
    reader_->read(dense, [&](std::span<const std::byte> bytes) { writer.append(bytes); });
  }

 private:
  const std::string user_;
  std::optional<weights::DeviceReader> reader_;
};

void save_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                      const std::map<std::string, std::string>& metadata) {
  std::vector<formats::TensorInfo> infos;
  std::map<std::string, at::Tensor> by_name;
  for (const NamedTensor& named : tensors) {
    infos.push_back(
        {.name = named.name, .dtype = dtype_of(path, named), .shape = named.tensor.sizes().vec()});
    by_name[named.name] = named.tensor;
  }
  formats::SafetensorsWriter writer(path, std::move(infos), metadata);
  TensorBytes bytes(path);
  for (const formats::TensorInfo& info : writer.tensors()) {
    bytes.append_to(writer, by_name.at(info.name));
  }
  writer.finish();
}

void save_torch(const std::string& path, std::span<const NamedTensor> tensors) {
  formats::StateDict state;
  for (const NamedTensor& named : tensors) {
    state.add(named.name, dtype_of(path, named), named.tensor.sizes().vec());
  }
  formats::TorchWriter writer(path, state.root, state.tensors, state.storages);
  TensorBytes bytes(path);
  for (const NamedTensor& named : tensors) {
    writer.begin();
    bytes.append_to(writer, named.tensor);
  }
  writer.finish();
}

void check_names(const std::string& path, std::span<const NamedTensor> tensors) {
  std::vector<std::string_view> names;
  for (const NamedTensor& named : tensors) {
    names.push_back(named.name);
  }
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end() || (!names.empty() && names.front().empty())) {
    throw UsageError("cannot write {}: the name {} is empty or stands there twice", path,
                     base::shown(twice != names.end() ? *twice : names.front()));
  }
}

}  // namespace

void save_weights(const std::string& path, std::span<const NamedTensor> tensors,
                  const std::map<std::string, std::string>& metadata) {
  check_names(path, tensors);
  if (path.ends_with(".safetensors")) {
    save_safetensors(path, tensors, metadata);
  } else if (path.ends_with(".pth") || path.ends_with(".pt") || path.ends_with(".bin")) {
    if (!metadata.empty()) {
      throw UsageError("cannot write {}: only safetensors has a place for metadata", path);
    }
    save_torch(path, tensors);
  } else {
    throw UsageError("cannot write {}: the name must end in .safetensors, .pth, .pt or .bin", path);
  }
}

}  // namespace lockstep
