#include "ddp/gradient_memory.h"

#include <algorithm>

#include <ATen/ops/empty.h>

#include "base/round.h"

namespace lockstep::ddp {
namespace {

constexpr int64_t kAlignBytes = 64;

// Returns at least one cell, since a bucket whose parameters have no elements is reduced too.
int64_t room_for(const at::Tensor& parameter) {
  return base::rounded_up(std::max<int64_t>(1, static_cast<int64_t>(parameter.nbytes())),
                          kAlignBytes);
}

// The parameter's own strides if its elements fill memory without a gap, as autograd lays gradients
// out too.
at::Tensor shaped(const at::Tensor& flat, const at::Tensor& parameter) {
  return parameter.is_non_overlapping_and_dense()
             ? flat.as_strided(parameter.sizes(), parameter.strides(), flat.storage_offset())
             : flat.view(parameter.sizes());
}

}  // namespace

GradientMemory::GradientMemory(Group& group, const std::vector<TrainedParameter>& parameters,
                               GradientMemoryOptions options)
    : parameters_(parameters), places_(parameters.size()) {
  const at::Device device = parameters.front().tensor.device();
  const bool allows_large = options.allows_large && !takes_device_path(device);
  int64_t bucket_bytes = 0;
  std::vector<int64_t> cells;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i].tensor;
    const auto bytes = static_cast<int64_t>(parameter.nbytes());
    places_[i].is_large =
        allows_large && bytes >= kLargeGradientBytes && !parameters_[i].has_sparse_gradient;
    if (places_[i].is_large) {
      cells.push_back(bytes);
    } else if (!parameters_[i].has_sparse_gradient) {
      bucket_bytes += room_for(parameter);
    }
  }
  const int64_t arena_bytes = GradientArena::room_for(cells);
  memory_ = group_memory(group, std::max(bucket_bytes + arena_bytes, kAlignBytes), device);
  if (!cells.empty()) {
    arena_ = GradientArena::make(memory_.narrow(0, bucket_bytes, arena_bytes), cells);
  }
}

GradientMemory::~GradientMemory() {
  if (arena_) {
    arena_->retire();
  }
}

void GradientMemory::lay_out(const std::vector<std::vector<size_t>>& plan) {
  // These are copies of what lies here now, which the neighbours' moves would overwrite.
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
      bucket.parameters.push_back(parameter);
      bucket.names.push_back(parameters_[i].name);
      places_[i].bucket = bucket.index;
      if (places_[i].is_large) {
        continue;
      }
      const at::Tensor flat = memory_.narrow(0, next, static_cast<int64_t>(parameter.nbytes()))
                                  .view(parameter.scalar_type());
      places_[i].view = shaped(flat, parameter).detach();
      bucket.gradients.push_back(places_[i].view);
      next += room_for(parameter);
    }
    if (next > begin) {
      bucket.buffer =
          memory_.narrow(0, begin, next - begin).view(bucket.parameters[0].scalar_type());
      bucket.buffer.zero_();
    }
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

// Takes a cell if one is free, otherwise ordinary memory, which only takes longer to reduce.
at::Tensor GradientMemory::make_large(size_t parameter) const {
  const GradientArena::Scope scope(arena_);
  const at::Tensor& like = parameters_[parameter].tensor;
  return shaped(at::empty({like.numel()}, like.options().requires_grad(false)), like).detach();
}

void GradientMemory::set_large(size_t parameter, at::Tensor view) {
  Place& place = places_[parameter];
  place.view = std::move(view);
  GradBucket& bucket = buckets_[place.bucket];
  bucket.buffer = place.view.as_strided({place.view.numel()}, {1}, place.view.storage_offset());
  bucket.gradients = {place.view};
}

void GradientMemory::take_in(size_t parameter) {
  at::Tensor tensor = parameters_[parameter].tensor;
  at::Tensor& gradient = tensor.mutable_grad();
  if (!places_[parameter].is_large) {
    if (!is_in_place(parameter)) {
      places_[parameter].view.copy_(gradient);
      gradient = places_[parameter].view;
    }
    return;
  }
  const bool has_layout = gradient.is_non_overlapping_and_dense() &&
                          (gradient.strides() == tensor.strides() ||
                           (!tensor.is_non_overlapping_and_dense() && gradient.is_contiguous()));
  if (!has_layout || !arena_->contains(gradient.const_data_ptr())) {
    const at::Tensor copy = make_large(parameter);
    if (!has_layout || arena_->contains(copy.const_data_ptr())) {  // else it is as good where it is
      copy.copy_(gradient);
      gradient = copy;
    }
  }
  set_large(parameter, gradient);
}

void GradientMemory::put_zeros(size_t parameter) {
  if (places_[parameter].is_large) {
    set_large(parameter, make_large(parameter));
  }
  places_[parameter].view.zero_();
}

void GradientMemory::let_go() {
  for (size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].is_large) {
      places_[i].view.reset();
      buckets_[places_[i].bucket].buffer.reset();
      buckets_[places_[i].bucket].gradients.clear();
    }
  }
}

}  // namespace lockstep::ddp
