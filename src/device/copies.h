#pragma once

// Copies between a device and the host, beside what the caller's own streams do. A seam: everything
// that orders copies is written against this class, and tested on machines without a device.

#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>

#include "base/deadline.h"

namespace lockstep::device {

// A point in the work of a stream: it has passed once everything is done that had been queued there
// before. Null has always passed.
class Moment {
 public:
  virtual ~Moment() = default;
};
using MomentPtr = std::shared_ptr<Moment>;

// Each lane is one stream: its copies happen one after the other, beside those of the other lane.
enum class Lane { ToHost, ToDevice };

// Threads: the lanes are for one thread at a time; everything else may be called concurrently.
class Copies {
 public:
  virtual ~Copies() = default;

  // What has been queued on the calling thread's current stream; and that stream goes on only after
  // `moment`.
  virtual MomentPtr now() = 0;
  virtual void current_waits(const MomentPtr& moment) = 0;

  // The lane goes on only after `moment`.
  virtual void after(Lane lane, const MomentPtr& moment) = 0;
  // Queues a copy; both tensors are contiguous, of one type and size. The tensor on the host must
  // stay alive until the copy is done, the other one may go at once.
  virtual void copy(Lane lane, const at::Tensor& to, const at::Tensor& from) = 0;
  // What has been queued on the lane.
  virtual MomentPtr reached(Lane lane) = 0;

  // Memory of the device for copies of Lane::ToDevice, which need not wait for what was queued
  // elsewhere before they write it. Whoever uses it on another stream calls current_uses(), so that
  // it is not given to anybody else before that stream is done with it.
  virtual at::Tensor memory_of_lane(at::IntArrayRef sizes, at::ScalarType type) = 0;
  virtual void current_uses(const at::Tensor& memory) = 0;

  // A copy beside the lanes, after `moment`, with both tensors kept until it is done. Returns when
  // that is.
  virtual MomentPtr copy_apart(const at::Tensor& to, const at::Tensor& from,
                               const MomentPtr& moment) = 0;

  virtual bool has_passed(const MomentPtr& moment) = 0;

  // Memory of the host from and to which copies are fast, as a uint8 tensor.
  virtual at::Tensor host_memory(int64_t bytes) = 0;
  // Makes memory that exists already as fast, where that is possible; `memory` is kept until the
  // last copy is done.
  virtual void make_fast(const at::Tensor& memory) = 0;
};

// Waits on the host. Returns false at the deadline. `look`, if there is one, is called now and
// then: what it throws ends the wait.
bool wait_for(Copies& copies, const MomentPtr& moment, base::Deadline deadline,
              const std::function<void()>& look = nullptr);

// Through two streams of the device. Needs load_cuda().
std::unique_ptr<Copies> make_copies(at::Device device);

}  // namespace lockstep::device
