#pragma once

// Text from a language model, token by token.

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::train {

struct GenerateOptions {
  int64_t num_tokens = 100;   // at most
  double temperature = 0;     // 0: always the likeliest token
  int64_t top_k = 0;          // > 0: only the k likeliest, and those as likely as the k-th
  double top_p = 1;           // in (0, 1]: of these, only the likeliest that make up this share
  uint64_t seed = 1;          // the same one gives the same text
  int64_t max_positions = 0;  // > 0: the model sees the last so many tokens
};

// The prompt's ids and those that follow. `logits` is the model: int64 [1, time] -> [1, time,
// vocabulary]. Throws UsageError for an empty prompt or an option out of range.
std::vector<int64_t> generate(std::vector<int64_t> ids,
                              const std::function<at::Tensor(const at::Tensor& ids_BT)>& logits,
                              const GenerateOptions& options);

// One token of these logits, float [vocabulary]; `dice` is in [0, 1).
int64_t choose_token(const at::Tensor& logits_V, const GenerateOptions& options, double dice);

}  // namespace lockstep::train
