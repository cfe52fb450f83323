#include "weights/weight_files.h"

#include <cstring>
#include <functional>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "formats/safetensors.h"
#include "formats/torch/torch_writer.h"

namespace lockstep::test {

namespace {

formats::DType dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return formats::DType::F32;
    case at::kHalf:
      return formats::DType::F16;
    case at::kBFloat16:
      return formats::DType::BF16;
    case at::kLong:
      return formats::DType::I64;
    default:
      throw UsageError("the tests write no {}", c10::toString(type));
  }
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

}  // namespace

at::Tensor patterned(const std::string& name, std::vector<int64_t> shape, at::ScalarType type) {
  int64_t first = 0;
  for (const char letter : name) {
    first = first * 31 % 1009 + letter;
  }
  int64_t count = 1;
  for (const int64_t size : shape) {
    count *= size;
  }
  const at::Tensor values = (at::arange(count, at::kLong) + first).remainder(2039) - 1019;
  return values.to(type).div(type == at::kLong ? 1 : 8).to(type).reshape(shape);
}

Named sample_weights() {
  Named tensors;
  const auto add = [&](const char* name, std::vector<int64_t> shape, at::ScalarType type) {
    tensors[name] = patterned(name, std::move(shape), type);
  };
  add("embed.weight", {1003, 768}, at::kFloat);
  add("layer.0.weight", {64, 96}, at::kHalf);
  add("layer.0.bias", {97}, at::kBFloat16);
  add("layer.1.weight", {3, 5, 7}, at::kFloat);
  add("num_batches", {}, at::kLong);
  add("nothing", {0, 4}, at::kFloat);
  return tensors;
}

void write_torch_file(const std::string& path, const Named& tensors) {
  formats::StateDict dict;
  for (const auto& [name, tensor] : tensors) {
    dict.add(name, dtype_of(tensor.scalar_type()), tensor.sizes().vec());
  }
  formats::TorchWriter writer(path, dict.root, dict.tensors, dict.storages);
  for (const auto& [name, tensor] : tensors) {
    writer.begin();
    writer.append(bytes_of(tensor));
  }
  writer.finish();
}

void write_safetensors_file(const std::string& path, const Named& tensors) {
  std::vector<formats::TensorInfo> infos;
  for (const auto& [name, tensor] : tensors) {
    infos.push_back({.name = name,
                     .dtype = dtype_of(tensor.scalar_type()),
                     .shape = tensor.sizes().vec(),
                     .strides = {}});
  }
  formats::SafetensorsWriter writer(path, infos, {{"format", "pt"}});
  for (const formats::TensorInfo& info : writer.tensors()) {
    writer.append(bytes_of(tensors.at(info.name)));
  }
  writer.finish();
}

std::vector<WeightTarget> targets_for(const Named& tensors, at::ScalarType type) {
  std::vector<WeightTarget> targets;
  for (const auto& [name, tensor] : tensors) {
    const bool keeps_type = type == at::ScalarType::Undefined;
    targets.push_back(
        {name, at::full(tensor.sizes(), 77, keeps_type ? tensor.scalar_type() : type)});
  }
  return targets;
}

void expect_loaded(const std::vector<WeightTarget>& targets, const Named& tensors) {
  for (const WeightTarget& target : targets) {
    EXPECT_TRUE(target.tensor.equal(tensors.at(target.name).to(target.tensor.scalar_type())))
        << target.name;
  }
}

}  // namespace lockstep::test
