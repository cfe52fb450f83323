#include "ddp/gradient_memory.h"

#include <algorithm>

namespace lockstep {
namespace {

constexpr int64_t kAlignBytes = 64;

int64_t room_for(const at::Tensor& parameter) {
  const auto bytes = static_cast<int64_t>(parameter.nbytes());
  return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
}

// The parameter's own strides if its elements fill memory without a gap, as autograd lays gradients
// out too.
at::Tensor shaped(const at::Tensor& flat, const at::Tensor& parameter) {
  return parameter.is_non_overlapping_and_dense()
             ? flat.as_strided(parameter.sizes(), parameter.strides())
             : flat.view(parameter.sizes());
}

}  // namespace

GradientMemory::GradientMemory(Group& group, const std::vector<TrainedParameter>& parameters)
    : parameters_(parameters), places_(parameters.size()) {
  int64_t bytes = 0;
  for (const TrainedParameter& parameter : parameters_) {
    bytes += parameter.has_sparse_gradient ? 0 : room_for(parameter.tensor);
  }
  memory_ = group.allocate(std::max(bytes, kAlignBytes));
}

void GradientMemory::lay_out(const std::vector<std::vector<size_t>>& plan) {
  // What lies here now, saved from being overwritten by its neighbours' moves.
  std::vector<std::pair<size_t, at::Tensor>> moved;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (is_in_place(i)) {
      moved.emplace_back(i, places_[i].view.clone());
    }
  }
  buckets_.clear();
  int64_t next = 0;
  for (const std::vector<size_t>& members : plan) {
    GradBucket bucket{.index = buckets_.size(),
                      .is_last = buckets_.size() + 1 == plan.size(),
                      .buffer = {},
                      .gradients = {},
                      .parameters = {},
                      .names = {}};
    const int64_t begin = next;
    for (const size_t i : members) {
      const at::Tensor& parameter = parameters_[i].tensor;
      const at::Tensor flat = memory_.narrow(0, next, static_cast<int64_t>(parameter.nbytes()))
                                  .view(parameter.scalar_type());
      places_[i] = {bucket.index, shaped(flat, parameter).detach()};
      bucket.gradients.push_back(places_[i].view);
      bucket.parameters.push_back(parameter);
      bucket.names.push_back(parameters_[i].name);
      next += room_for(parameter);
    }
    bucket.buffer = memory_.narrow(0, begin, next - begin).view(bucket.parameters[0].scalar_type());
    bucket.buffer.zero_();
    buckets_.push_back(std::move(bucket));
  }
  for (const auto& [i, values] : moved) {
    at::Tensor parameter = parameters_[i].tensor;
    places_[i].view.copy_(values);
    parameter.mutable_grad() = places_[i].view;
  }
}

bool GradientMemory::is_in_place(size_t parameter) const {
  const at::Tensor& gradient = parameters_[parameter].tensor.grad();
  const at::Tensor& view = places_[parameter].view;
  return gradient.defined() && view.defined() && !gradient.is_sparse() &&
         gradient.const_data_ptr() == view.const_data_ptr() && gradient.strides() == view.strides();
}

void GradientMemory::take_in(size_t parameter) {
  if (is_in_place(parameter)) {
    return;
  }
  at::Tensor tensor = parameters_[parameter].tensor;
  at::Tensor& gradient = tensor.mutable_grad();
  places_[parameter].view.copy_(gradient);
  gradient = places_[parameter].view;
}

}  // namespace lockstep
