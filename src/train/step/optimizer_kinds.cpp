#include "train/step/optimizer_kinds.h"

#include <typeinfo>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace lockstep::train {
namespace {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

template <typename State>
std::unique_ptr<OptimizerParamState> make_state() {
  return std::make_unique<State>();
}

template <typename State>
int64_t* steps_of(OptimizerParamState& state) {
  return &static_cast<State&>(state).step();
}

int64_t* no_steps(OptimizerParamState&) {
  return nullptr;
}

bool always(const OptimizerOptions&) {
  return true;
}

// `field` is the accessor that TORCH_ARG made.
template <typename State, at::Tensor& (State::*field)() noexcept>
at::Tensor& tensor_of(OptimizerParamState& state) {
  return (static_cast<State&>(state).*field)();
}

// Adam and AdamW have the same fields in unrelated classes.
template <typename Options, typename State>
OptimizerKindInfo adam_like(const char* name) {
  return {.name = name,
          .slots = {{"exp_avg", tensor_of<State, &State::exp_avg>, always},
                    {"exp_avg_sq", tensor_of<State, &State::exp_avg_sq>, always},
                    {"max_exp_avg_sq", tensor_of<State, &State::max_exp_avg_sq>,
                     [](const OptimizerOptions& options) {
                       return static_cast<const Options&>(options).amsgrad();
                     }}},
          .make_state = make_state<State>,
          .steps = steps_of<State>,
          .describe = [](const OptimizerOptions& base) {
            const auto& options = static_cast<const Options&>(base);
            return fmt::format("lr = {}, betas = {} {}, eps = {}, weight_decay = {}, amsgrad = {}",
                               options.lr(), std::get<0>(options.betas()),
                               std::get<1>(options.betas()), options.eps(), options.weight_decay(),
                               options.amsgrad());
          }};
}

OptimizerKindInfo sgd() {
  using torch::optim::SGDOptions;
  using torch::optim::SGDParamState;
  return {.name = "SGD",
          .slots = {{"momentum_buffer", tensor_of<SGDParamState, &SGDParamState::momentum_buffer>,
                     [](const OptimizerOptions& options) {
                       return static_cast<const SGDOptions&>(options).momentum() != 0;
                     }}},
          .make_state = make_state<SGDParamState>,
          .steps = no_steps,
          .describe = [](const OptimizerOptions& base) {
            const auto& options = static_cast<const SGDOptions&>(base);
            return fmt::format(
                "lr = {}, momentum = {}, dampening = {}, weight_decay = {}, nesterov = {}",
                options.lr(), options.momentum(), options.dampening(), options.weight_decay(),
                options.nesterov());
          }};
}

OptimizerKindInfo rmsprop() {
  using torch::optim::RMSpropOptions;
  using torch::optim::RMSpropParamState;
  return {.name = "RMSprop",
          .slots = {{"square_avg", tensor_of<RMSpropParamState, &RMSpropParamState::square_avg>,
                     always},
                    {"momentum_buffer",
                     tensor_of<RMSpropParamState, &RMSpropParamState::momentum_buffer>,
                     [](const OptimizerOptions& options) {
                       return static_cast<const RMSpropOptions&>(options).momentum() > 0;
                     }},
                    {"grad_avg", tensor_of<RMSpropParamState, &RMSpropParamState::grad_avg>,
                     [](const OptimizerOptions& options) {
                       return static_cast<const RMSpropOptions&>(options).centered();
                     }}},
          .make_state = make_state<RMSpropParamState>,
          .steps = steps_of<RMSpropParamState>,
          .describe = [](const OptimizerOptions& base) {
            const auto& options = static_cast<const RMSpropOptions&>(base);
            return fmt::format(
                "lr = {}, alpha = {}, eps = {}, weight_decay = {}, momentum = {}, centered = {}",
                options.lr(), options.alpha(), options.eps(), options.weight_decay(),
                options.momentum(), options.centered());
          }};
}

OptimizerKindInfo adagrad() {
  using torch::optim::AdagradOptions;
  using torch::optim::AdagradParamState;
  return {.name = "Adagrad",
          .slots = {{"sum", tensor_of<AdagradParamState, &AdagradParamState::sum>, always}},
          .make_state = make_state<AdagradParamState>,
          .steps = steps_of<AdagradParamState>,
          .describe = [](const OptimizerOptions& base) {
            const auto& options = static_cast<const AdagradOptions&>(base);
            return fmt::format(
                "lr = {}, lr_decay = {}, weight_decay = {}, initial_accumulator_value = {}, eps = "
                "{}",
                options.lr(), options.lr_decay(), options.weight_decay(),
                options.initial_accumulator_value(), options.eps());
          }};
}

struct KnownKind {
  const std::type_info& type;
  OptimizerKindInfo info;
};

const std::vector<KnownKind>& all_kinds() {
  namespace optim = torch::optim;  // a using directive would find our own AdamW first
  static const std::vector<KnownKind> kinds = {
      {typeid(optim::SGD), sgd()},
      {typeid(optim::Adam), adam_like<optim::AdamOptions, optim::AdamParamState>("Adam")},
      {typeid(optim::AdamW), adam_like<optim::AdamWOptions, optim::AdamWParamState>("AdamW")},
      {typeid(optim::RMSprop), rmsprop()},
      {typeid(optim::Adagrad), adagrad()}};
  return kinds;
}

}  // namespace

const OptimizerKindInfo* find_kind(const torch::optim::Optimizer& optimizer) {
  for (const KnownKind& kind : all_kinds()) {
    if (kind.type == typeid(optimizer)) {
      return &kind.info;
    }
  }
  return nullptr;
}

std::string known_kinds() {
  std::vector<std::string> names;
  for (const KnownKind& kind : all_kinds()) {
    names.emplace_back(kind.info.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace lockstep::train
