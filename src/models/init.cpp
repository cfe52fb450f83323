#include "models/init.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <lockstep/models/configured_module.h>

#include "base/dice.h"
#include "base/hash.h"

namespace lockstep::models {
namespace {

// A constant, a normal distribution round 0 or a uniform one in +-bound.
struct FirstValue {
  double constant = 0;
  double deviation = 0;
  double bound = 0;
};

bool is_any_of(std::string_view name, std::initializer_list<std::string_view> ends) {
  return std::any_of(ends.begin(), ends.end(),
                     [&](std::string_view end) { return name.ends_with(end); });
}

// `residuals`: the weights whose outputs are summed up, two per layer.
template <typename Options>
FirstValue transformer_value(const Options& options, std::string_view name,
                             const at::Tensor& tensor,
                             std::initializer_list<std::string_view> residuals) {
  if (tensor.dim() == 1) {
    return {.constant = name.ends_with("weight") ? 1.0 : 0.0};  // LayerNorm's; biases
  }
  const double scale =
      is_any_of(name, residuals) ? 1 / std::sqrt(2 * static_cast<double>(options.num_layers)) : 1;
  return {.deviation = options.initializer_range * scale};
}

FirstValue first_value(const MyTransformerOptions& options, std::string_view name,
                       const at::Tensor& tensor) {
  return transformer_value(options, name, tensor, {"out_proj.weight", "linear2.weight"});
}

FirstValue first_value(const GPT2Options& options, std::string_view name,
                       const at::Tensor& tensor) {
  return transformer_value(options, name, tensor, {"c_proj.weight"});
}

FirstValue first_value(const BertOptions& options, std::string_view name,
                       const at::Tensor& tensor) {
  return transformer_value(options, name, tensor, {});
}

FirstValue first_value(const ResNetOptions& options, std::string_view name,
                       const at::Tensor& tensor) {
  if (tensor.dim() == 4) {
    const auto fan_out = static_cast<double>(tensor.size(0) * tensor.size(2) * tensor.size(3));
    return {.deviation = std::sqrt(2 / fan_out)};
  }
  if (name.starts_with("fc.")) {
    const int64_t expansion = options.bottleneck ? 4 : 1;
    const auto num_inputs = static_cast<double>(8 * options.width * expansion);
    return {.bound = 1 / std::sqrt(num_inputs)};
  }
  return {.constant = is_any_of(name, {"weight", "running_var"}) ? 1.0 : 0.0};  // BatchNorm's
}

// Seeds that are near, and names that are alike, lead to streams that have nothing in common.
uint64_t seed_of(uint64_t seed, std::string_view name) {
  base::Fnv1a hash(base::Fnv1a::kStart ^ seed);
  hash.add(name);
  return base::Dice::mix(hash.value());
}

void fill(const ModelConfig& config, uint64_t seed, std::string_view name,
          const at::Tensor& tensor) {
  const std::string_view own_name = name.starts_with("bert.") ? name.substr(5) : name;
  const FirstValue value = std::visit(
      [&](const auto& options) { return first_value(options, own_name, tensor); }, config.options);
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed_of(seed, own_name));
  if (value.deviation > 0) {
    tensor.normal_(0, value.deviation, generator);
  } else if (value.bound > 0) {
    tensor.uniform_(-value.bound, value.bound, generator);
  } else {
    tensor.fill_(value.constant);
  }
  if (own_name == "embeddings.word_embeddings.weight") {
    const int64_t pad_token = std::get<BertOptions>(config.options).pad_token;
    if (pad_token >= 0) {
      tensor[pad_token].zero_();
    }
  }
}

template <typename Wanted>
void fill_where(ConfiguredModule& model, uint64_t seed, const Wanted& wanted) {
  const at::NoGradGuard no_grad;
  for (const auto& items : {model.named_parameters(), model.named_buffers()}) {
    for (const auto& item : items) {
      if (wanted(item.key())) {
        fill(model.config(), seed, item.key(), item.value());
      }
    }
  }
}

}  // namespace

void initialise(ConfiguredModule& model, uint64_t seed) {
  fill_where(model, seed, [](const std::string&) { return true; });
}

void initialise(ConfiguredModule& model, uint64_t seed, const std::vector<std::string>& names) {
  fill_where(model, seed, [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  });
}

}  // namespace lockstep::models
