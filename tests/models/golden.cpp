#include "models/golden.h"

#include <algorithm>
#include <cmath>
#include <span>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/models/bert.h>
#include <lockstep/models/gpt2.h>
#include <lockstep/models/my_transformer.h>
#include <lockstep/models/resnet.h>

#include "formats/archive/crc32.h"
#include "formats/safetensors.h"

namespace lockstep::test {
namespace {

at::ScalarType scalar_type(formats::DType dtype) {
  switch (dtype) {
    case formats::DType::F32:
      return at::kFloat;
    case formats::DType::F64:
      return at::kDouble;
    case formats::DType::I64:
      return at::kLong;
    default:
      throw FormatError("no golden holds {}", formats::name_of(dtype));
  }
}

BertInput bert_input(const Golden& golden) {
  return {.ids_BT = golden.at("input.ids"),
          .attention_mask_BT = golden.input("attention_mask"),
          .token_types_BT = golden.input("token_types")};
}

void run_bert(BertImpl& model, const Golden& golden, Tensors& results) {
  const BertOutput output = model.forward(bert_input(golden));
  results["output.hidden"] = output.hidden_BTE;
  results["output.pooled"] = output.pooled_BE;
  results["output.embedding"] = model.embed(bert_input(golden));
  results["loss"] = (output.hidden_BTE * golden.at("input.probe_hidden")).mean() +
                    (output.pooled_BE * golden.at("input.probe_pooled")).mean();
}

}  // namespace

Tensors read_tensors(const std::string& path) {
  const base::FileSource source(path);
  Tensors tensors;
  for (const formats::TensorInfo& info : formats::read_safetensors(source).tensors) {
    const at::Tensor tensor = at::empty(info.shape, scalar_type(info.dtype));
    source.read_at(info.offset_bytes,
                   {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()});
    tensors[info.name] = tensor;
  }
  return tensors;
}

Golden read_golden(const std::string& name) {
  return {read_tensors(kGoldens + name + ".safetensors")};
}

at::Tensor Golden::input(const std::string& name) const {
  const auto found = tensors.find("input." + name);
  return found == tensors.end() ? at::Tensor() : found->second;
}

Tensors run(ConfiguredModule& model, const Golden& golden) {
  Tensors results;
  const at::Tensor labels = golden.input("labels");
  at::Tensor& logits = results["output.logits"];
  at::Tensor& loss = results["loss"];
  if (auto* gpt2 = dynamic_cast<GPT2Impl*>(&model)) {
    logits = gpt2->forward(golden.at("input.ids"));
    loss = next_token_loss(logits, labels);
  } else if (auto* mine = dynamic_cast<MyTransformerImpl*>(&model)) {
    logits = mine->forward(golden.at("input.ids"));
    loss = next_token_loss(logits, labels);
  } else if (auto* masked = dynamic_cast<BertForMaskedLMImpl*>(&model)) {
    logits = masked->forward(bert_input(golden));
    loss = masked_token_loss(logits, labels);
  } else if (auto* classifier = dynamic_cast<BertForSequenceClassificationImpl*>(&model)) {
    logits = classifier->forward(bert_input(golden));
    loss = at::cross_entropy_loss(logits, labels);
  } else if (auto* resnet = dynamic_cast<ResNetImpl*>(&model)) {
    logits = resnet->forward(golden.at("input.pictures"));
    loss = at::cross_entropy_loss(logits, labels);
  } else {
    run_bert(dynamic_cast<BertImpl&>(model), golden, results);
  }
  model.zero_grad();
  loss.backward();
  for (const auto& item : model.named_parameters()) {
    results["grad." + item.key()] = item.value().grad();
  }
  return results;
}

double largest_difference(const at::Tensor& tensor, const at::Tensor& golden) {
  if (!tensor.defined() || tensor.sizes() != golden.sizes()) {
    return INFINITY;
  }
  const double unit = std::max(golden.abs().max().item<double>(), 1e-3);
  const double difference =
      (tensor.to(at::kDouble) - golden.to(at::kDouble)).abs().max().item<double>();
  return std::isnan(difference) ? INFINITY : difference / unit;
}

void expect_close(const Tensors& results, const Golden& golden, double limit) {
  for (const auto& [name, expected] : golden.tensors) {
    if (name.starts_with("input.")) {
      continue;
    }
    const auto found = results.find(name);
    ASSERT_NE(found, results.end()) << name;
    EXPECT_LE(largest_difference(found->second.detach(), expected), limit) << name;
  }
}

at::Tensor fill(const std::string& name, at::IntArrayRef sizes) {
  const at::Tensor tensor = at::empty(sizes, at::kDouble);
  auto* values = tensor.mutable_data_ptr<double>();
  const uint32_t start = formats::crc32(0, std::as_bytes(std::span(name))) * 0x9E3779B1u;
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    uint32_t x = start + static_cast<uint32_t>(i);
    x = (x ^ (x >> 16)) * 0x45D9F3Bu;
    x = (x ^ (x >> 16)) * 0x45D9F3Bu;
    values[i] = (x ^ (x >> 16)) / 2147483648.0 - 1;
  }
  return tensor;
}

at::Tensor summary(const std::string& name, const at::Tensor& gradient) {
  const at::Tensor flat = gradient.detach().to(at::kDouble).flatten();
  const auto root = std::sqrt(static_cast<double>(flat.numel()));
  return at::stack({flat.norm(), flat.dot(fill(name, flat.sizes())) / root});
}

}  // namespace lockstep::test
