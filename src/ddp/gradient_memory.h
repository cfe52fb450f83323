#pragma once

// Gradients live in the group's memory, or in that of the parameters' device. Each small one has a
// fixed place in a bucket; a large one is a bucket of its own, wherever autograd wrote it (see
// gradient_arena.h). On a device all have a fixed place.

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/comm/group.h>
#include <lockstep/ddp/comm_hook.h>

#include "ddp/device/device_path.h"
#include "ddp/gradient_arena.h"
#include "ddp/parameters.h"

namespace lockstep::ddp {

// Gradients from here on are large: so much is worth an operation of its own.
inline constexpr int64_t kLargeGradientBytes = 1 << 20;

struct GradientMemoryOptions {
  bool allows_large = true;  // false: every gradient has a fixed place
};

class GradientMemory {
 public:
  // Collective: room for the gradients of all parameters (those with sparse gradients apart), which
  // are on one device.
  GradientMemory(Group& group, const std::vector<TrainedParameter>& parameters,
                 GradientMemoryOptions options);
  ~GradientMemory();
  GradientMemory(const GradientMemory&) = delete;
  GradientMemory& operator=(const GradientMemory&) = delete;

  // Cuts the memory into these buckets of parameters; large ones are alone. Gradients that lie in a
  // bucket now keep their values and are views of their new place afterwards.
  void lay_out(const std::vector<std::vector<size_t>>& plan);

  const std::vector<GradBucket>& buckets() const { return buckets_; }
  const at::Tensor& memory() const { return memory_; }
  size_t bucket_of(size_t parameter) const { return places_[parameter].bucket; }
  const std::shared_ptr<GradientArena>& arena() const { return arena_; }

  // Returns where the parameter's part of the sum lies, in the parameter's shape and strides. For a
  // large one it is defined from take_in() or put_zeros() to let_go().
  const at::Tensor& view(size_t parameter) const { return places_[parameter].view; }

  // Makes the gradient this rank's part, and copies it to its place unless it is there already.
  // Afterwards the gradient is the view.
  void take_in(size_t parameter);
  // Makes zeros this rank's part; the gradient stays what it is.
  void put_zeros(size_t parameter);
  // Forgets where large gradients lie, so that their memory is free when users drop them.
  void let_go();

  // Collective over `group`.
  void rebind(Group& group) { rebind_memory(group, memory_); }

 private:
  struct Place {
    size_t bucket = 0;
    bool is_large = false;
    at::Tensor view;
  };

  bool is_in_place(size_t parameter) const;
  at::Tensor make_large(size_t parameter) const;
  void set_large(size_t parameter, at::Tensor view);

  const std::vector<TrainedParameter>& parameters_;
  at::Tensor memory_;  // bytes: all buckets, then the arena
  std::shared_ptr<GradientArena> arena_;
  std::vector<GradBucket> buckets_;
  std::vector<Place> places_;  // by parameter; an undefined view for sparse ones
};

}  // namespace lockstep::ddp
