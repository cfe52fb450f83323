#pragma once

// Where gradients live: one piece of the group's memory, cut into buckets, cut into gradients.

#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/comm/group.h>
#include <lockstep/ddp/comm_hook.h>

#include "ddp/parameters.h"

namespace lockstep {

class GradientMemory {
 public:
  // Collective: room for the gradients of all parameters (those with sparse gradients apart).
  GradientMemory(Group& group, const std::vector<TrainedParameter>& parameters);

  // Cuts the memory into these buckets of parameters. Gradients that lie in it now keep their
  // values and are views of their new place afterwards.
  void lay_out(const std::vector<std::vector<size_t>>& plan);

  const std::vector<GradBucket>& buckets() const { return buckets_; }
  size_t bucket_of(size_t parameter) const { return places_[parameter].bucket; }

  // The parameter's place, in the parameter's shape and strides.
  const at::Tensor& view(size_t parameter) const { return places_[parameter].view; }

  // True if the parameter's gradient is that view.
  bool is_in_place(size_t parameter) const;

  // Copies the parameter's gradient to its place, unless it is there, and makes it the view.
  void take_in(size_t parameter);

  // Collective over `group`.
  void rebind(Group& group) { group.rebind(memory_); }

 private:
  struct Place {
    size_t bucket = 0;
    at::Tensor view;
  };

  const std::vector<TrainedParameter>& parameters_;
  at::Tensor memory_;  // bytes
  std::vector<GradBucket> buckets_;
  std::vector<Place> places_;  // by parameter; an undefined view for sparse ones
};

}  // namespace lockstep
