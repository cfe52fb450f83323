// Shapes: B batch (1), T time, V vocabulary.
#include "train/generate.h"

#include <algorithm>
#include <numeric>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>

#include <lockstep/base/error.h>

#include "base/dice.h"

namespace lockstep::train {

int64_t choose_token(const at::Tensor& logits_V, const GenerateOptions& options, double dice) {
  if (options.temperature == 0) {
    return logits_V.argmax().item<int64_t>();
  }
  const auto [sorted_V, order_V] =
      at::sort((logits_V.cpu().to(at::kDouble) / options.temperature).softmax(0), 0, true);
  const auto* shares = sorted_V.contiguous().const_data_ptr<double>();
  const int64_t num_all = sorted_V.size(0);
  int64_t limit = options.top_k > 0 ? std::min(options.top_k, num_all) : num_all;
  while (limit < num_all && shares[limit] == shares[limit - 1]) {
    ++limit;  // as likely as the last of the k
  }
  // top-p is a share of what top-k left, as in transformers.
  const double left_by_top_k = std::accumulate(shares, shares + limit, 0.0);
  int64_t num_kept = 0;
  double kept = 0;
  while (num_kept < limit && (num_kept == 0 || kept < options.top_p * left_by_top_k)) {
    kept += shares[num_kept++];
  }
  double left = dice * kept;
  int64_t chosen = 0;
  while (chosen + 1 < num_kept && left >= shares[chosen]) {
    left -= shares[chosen++];
  }
  return order_V[chosen].item<int64_t>();
}

std::vector<int64_t> generate(std::vector<int64_t> ids,
                              const std::function<at::Tensor(const at::Tensor& ids_BT)>& logits,
                              const GenerateOptions& options) {
  if (ids.empty()) {
    throw UsageError("there is nothing to go on from: the prompt is empty");
  }
  if (options.temperature < 0 || options.top_k < 0 || options.top_p <= 0 || options.top_p > 1) {
    throw UsageError(
        "temperature {} must be at least 0, top-k {} at least 0 and top-p {} in (0, 1]",
        options.temperature, options.top_k, options.top_p);
  }
  if (options.num_tokens < 0) {
    throw UsageError("{} tokens cannot be written: give a number of at least 0",
                     options.num_tokens);
  }
  const at::NoGradGuard no_grad;
  base::Dice dice(options.seed, 0);
  for (int64_t i = 0; i < options.num_tokens; ++i) {
    const auto length = static_cast<int64_t>(ids.size());
    const int64_t seen =
        options.max_positions > 0 ? std::min(length, options.max_positions) : length;
    const at::Tensor ids_BT = at::empty({1, seen}, at::kLong);
    std::copy(ids.end() - seen, ids.end(), ids_BT.mutable_data_ptr<int64_t>());
    const at::Tensor logits_V = logits(ids_BT)[0][seen - 1];
    ids.push_back(choose_token(logits_V, options, static_cast<double>(dice.uniform(0, 1))));
  }
  return ids;
}

}  // namespace lockstep::train
