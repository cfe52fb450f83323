#pragma once

// The life of a step.
//
// Forward: begin_forward(), once per step, looks the model over and brings rank 0's buffers;
// end_forward() watches the outputs, so that backward is noticed at its outer end.
//
// Backward: on_output() or the first on_gradient() calls begin_backward(). on_gradient(i) is called
// after autograd has added to parameter i's gradient: once it has come as often as in the first
// step, the gradient goes into its bucket; a full bucket whose predecessors are under way is sent.
//
// End: autograd calls finish_backward() after the last gradient. It completes the step: it sends
// the rest, then a few numbers, the verdict, by which all ranks learn what any of them found wrong.
//
// The first synchronised step sends nothing before its end: only then is it known how often each
// parameter gets a gradient (more than once with checkpointed backward) and in which order.
//
// On a device all of this queues work and does not wait for it, until the verdict: there a step
// waits for the other ranks, and so for the device. A model with buffers waits once more, in the
// broadcast of its buffers before a forward. Whether a parameter was used is known to the host,
// since autograd runs there.

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <torch/csrc/autograd/function.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <lockstep/ddp/reducer.h>

#include "base/deadline.h"
#include "ddp/bucket_plan.h"
#include "ddp/bucket_tuner.h"
#include "ddp/buffer_sync.h"
#include "ddp/device/stream_order.h"
#include "ddp/gradient_memory.h"
#include "ddp/parameters.h"
#include "ddp/shard_sum.h"

namespace lockstep {

namespace ddp {
class ReduceClock;
}

// What all copies of a reducer share, and what autograd calls. What users call is in Reducer itself
// (reducer.cpp).
class Reducer::Impl : public std::enable_shared_from_this<Reducer::Impl> {
 public:
  Impl(std::shared_ptr<torch::nn::Module> module, Group group, DdpOptions options);
  ~Impl();

 private:
  friend class Reducer;
  friend class NoSync;
  friend class Join;

  // Everything about one backward.
  struct Backward {
    bool is_running = false;
    bool syncs = false;
    bool is_at_end = false;           // no more gradients will come
    bool is_shadow = false;           // of a rank that has run out of batches
    std::vector<int> num_fired;       // by parameter
    std::vector<bool> is_ready;       // its part is in the bucket
    std::vector<size_t> num_missing;  // gradients, by bucket
    std::vector<size_t> fired_order;  // parameters, each as often as it fired
    std::vector<Work> works;          // of the buckets that were sent, in order
    size_t num_finished = 0;          // of them, with step_in_backward
    std::optional<size_t> repeated;   // a parameter that fired again when its bucket was sent
    base::Clock::time_point began;
    std::chrono::nanoseconds copy_in{};
    std::shared_ptr<ddp::ReduceClock> clock;
  };
  struct Verdict;

  // set_up.cpp
  void start();  // does what the constructor cannot: hooks hold a weak pointer to this
  void check_options() const;
  void set_shards();
  void watch_gradients();
  void lay_out_buckets();
  bool is_needed() const;
  void choose_overlap();
  ddp::BucketLimits limits() const;

  // reducer.cpp
  void check_optimizer(const torch::optim::Optimizer& optimizer) const;
  std::vector<at::Tensor> gradients_to_clip() const;

  // backward.cpp
  void on_output();
  void on_gradient(size_t parameter);
  void begin_backward();
  void start_backward_state(bool syncs);
  void rebuild_if_due();
  void expect_gradients();
  void add_part(size_t parameter);
  void send_full_buckets();
  void send_next_bucket();
  void finish_sent_buckets();
  void finish_bucket(size_t index, const std::vector<bool>& is_used);
  void step_parameters_of(size_t bucket, const std::vector<bool>& is_used);
  void finish_backward();
  void end_local_backward();
  bool is_last_shard() const { return next_shard_ + 1 == num_local_shards_; }
  int divisor() const;
  bool divides_ourselves() const;

  // step_end.cpp
  void complete();
  std::vector<std::pair<size_t, at::Tensor>> add_missing_parts();
  Verdict make_verdict();
  std::vector<bool> used_parameters(const Verdict& verdict) const;
  void judge(const Verdict& verdict) const;
  void learn_from_first_step();
  void settle_gradients(const std::vector<bool>& is_used);
  void record_times(base::Clock::time_point waited_from);
  bool maps_used() const;

  // join.cpp
  struct JoinState {
    JoinOptions options;
    int num_active = 0;
    int root = 0;  // the lowest rank that still has batches: its buffers and its order count
  };
  int announce(bool is_active);  // how many ranks have batches
  void shadow_step();

  const std::shared_ptr<torch::nn::Module> module_;
  Group group_;
  DdpOptions options_;
  ddp::ModelTensors tensors_;
  int num_local_shards_ = 1;
  std::optional<ddp::GradientMemory> memory_;  // none: nothing to do
  ddp::BufferSync buffers_;
  bool is_on_device_ = false;  // the parameters are; see device_path.h
  bool overlaps_ = true;
  std::optional<ddp::ShardSum> shard_sum_;
  std::optional<ddp::BucketTuner> tuner_;
  torch::optim::Optimizer* optimizer_ = nullptr;
  std::vector<std::pair<std::shared_ptr<torch::autograd::Node>, uintptr_t>> hooks_;
  std::atomic<int> no_sync_depth_{0};

  mutable std::mutex mutex_;  // guards what follows
  Backward backward_;
  ddp::StreamOrder stream_order_;  // every hook joins it before it touches gradient memory
  std::optional<ddp::GradientArena::Scope> serving_;  // of the thread that runs backward
  int64_t step_ = 0;                                  // synchronised backwards so far
  int next_shard_ = 0;
  bool has_forwarded_ = false;       // in this step
  bool has_ever_forwarded_ = false;  // through the wrapper
  bool is_first_ = true;             // no synchronised backward yet
  bool is_rebuild_due_ = false;
  std::vector<int> expected_fires_;    // by parameter, from the first step
  std::vector<bool> was_used_;         // since the last synchronised backward, under no_sync
  std::vector<bool> static_unused_;    // static_graph: by no rank
  std::vector<size_t> arrival_order_;  // of parameters, for the next layout
  std::optional<JoinState> join_;
  StepTimes times_;
};

}  // namespace lockstep
