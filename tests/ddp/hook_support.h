#pragma once

// For tests of communication hooks: buckets like the reducer's, gradients that every rank can
// compute for all of them, and a group that counts what is sent.

#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include <lockstep/ddp/comm_hook.h>

#include "support/same_bits.h"

namespace lockstep {

using testing_support::same_on_all_ranks;

// A model without a forward: parameters by name.
struct Parameters {
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;
};
Parameters make_parameters(const std::vector<std::vector<int64_t>>& sizes,
                           at::ScalarType type = at::kDouble);

// Buckets of these parameters (by number), with a gap behind each gradient.
using Split = std::vector<std::vector<size_t>>;
std::vector<GradBucket> make_buckets(const Parameters& parameters, const Split& split,
                                     Group& group);

// Rank's gradient of parameter number `parameter` in a step, in double.
struct Place {
  int rank = 0;
  int step = 0;
  size_t parameter = 0;
};
at::Tensor gradient_at(at::IntArrayRef sizes, const Place& place);
at::Tensor average_at(at::IntArrayRef sizes, int size, const Place& place);

// Writes this rank's gradients of the step.
void fill(const std::vector<GradBucket>& buckets, const Parameters& parameters, int step, int rank);

// As the reducer: start in order, wait and finish in order.
void run_hook(CommHook& hook, const std::vector<GradBucket>& buckets, Group& group);

// The gradients in the order of the parameters, clones.
std::vector<at::Tensor> results(const std::vector<GradBucket>& buckets,
                                const Parameters& parameters);

bool same_on_all_ranks(Group& group, const std::vector<GradBucket>& buckets);
bool gaps_are_zero(const std::vector<GradBucket>& buckets);

// What went through a counting group.
struct Sent {
  at::ScalarType type = at::kFloat;
  int64_t numel = 0;
  ReduceOp op = ReduceOp::Sum;
};
struct SentLog {
  std::vector<Sent> all_reduces;
  std::vector<int64_t> allocations;  // bytes
};

// A group that passes all_reduce and allocate on to `group`.
Group counting_group(Group group, std::shared_ptr<SentLog> log);

}  // namespace lockstep
