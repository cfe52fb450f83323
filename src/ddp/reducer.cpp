#include <algorithm>
#include <mutex>
#include <set>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/ddp/distributed_data_parallel.h>

#include "ddp/bucket_plan.h"
#include "ddp/model_check.h"

namespace lockstep {
namespace {

// Each tensor once, under its first name: a tied weight is registered twice.
template <typename Items>
void add_unique(const Items& items, std::set<void*>& seen, NamedTensors& out) {
  for (const auto& item : items) {
    if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second) {
      out.emplace_back(item.key(), item.value());
    }
  }
}

}  // namespace

// Life of a step: the hook of each parameter copies its gradient into its bucket; a bucket that is
// full, and whose predecessors are launched, is launched; at the end of backward what is left is
// launched, all are waited for, and the averages are copied back.
class Reducer::Impl : public std::enable_shared_from_this<Reducer::Impl> {
 public:
  Impl(std::shared_ptr<torch::nn::Module> module, Group group, DdpOptions options)
      : module_(std::move(module)), group_(std::move(group)), options_(options) {
    if (options_.bucket_bytes < 1) {
      throw UsageError("ddp: bucket_bytes = {} must be at least 1", options_.bucket_bytes);
    }
    NamedTensors everything;
    std::set<void*> seen;
    add_unique(module_->named_parameters(), seen, everything);
    for (const auto& [name, tensor] : everything) {
      if (tensor.requires_grad()) {
        parameters_.push_back(tensor);
      }
    }
    if (parameters_.empty()) {
      throw UsageError(
          "ddp: the model has no parameter that requires a gradient; is everything frozen?");
    }
    if (group_.size() == 1) {
      return;
    }
    add_unique(module_->named_buffers(), seen, everything);
    check_same_model(group_, everything);
    broadcast_tensors(group_, everything, options_.bucket_bytes);
    buckets_ = plan_buckets(parameters_, options_.bucket_bytes);
    place_of_.resize(parameters_.size());
    for (size_t b = 0; b < buckets_.size(); ++b) {
      for (size_t s = 0; s < buckets_[b].slots.size(); ++s) {
        place_of_[buckets_[b].slots[s].parameter] = {b, s};
      }
    }
    log::debug("ddp", "{} parameters in {} buckets of at most {} bytes", parameters_.size(),
               buckets_.size(), options_.bucket_bytes);
    reset();
  }

  ~Impl() {
    for (const auto& [node, key] : hooks_) {
      node->del_post_hook(key);
    }
  }

  void watch_gradients() {
    for (size_t i = 0; group_.size() > 1 && i < parameters_.size(); ++i) {
      const auto node = torch::autograd::impl::grad_accumulator(parameters_[i]);
      auto hook = [weak = weak_from_this(), i](const torch::autograd::variable_list& outputs,
                                               const torch::autograd::variable_list&) {
        if (const auto self = weak.lock()) {
          self->on_gradient(i);
        }
        return outputs;
      };
      const auto key =
          node->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(hook));
      hooks_.emplace_back(node,
                          key);  // holding the node keeps it, and so the hook, from being made anew
    }
  }

 private:
  struct Place {
    size_t bucket = 0;
    size_t slot = 0;
  };

  void reset() {
    is_ready_.assign(parameters_.size(), false);
    num_missing_.clear();
    for (const Bucket& bucket : buckets_) {
      num_missing_.push_back(bucket.slots.size());
    }
    works_.clear();
    in_backward_ = false;
  }

  at::Tensor slice(size_t parameter) const {
    const Bucket& bucket = buckets_[place_of_[parameter].bucket];
    const BucketSlot& slot = bucket.slots[place_of_[parameter].slot];
    return bucket.flat.narrow(0, slot.offset, slot.numel).view(parameters_[parameter].sizes());
  }

  void on_gradient(size_t parameter) {
    const std::lock_guard lock(mutex_);
    if (!in_backward_) {
      in_backward_ = true;
      torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this()] {
        if (const auto self = weak.lock()) {
          self->finish_backward();
        }
      });
    }
    const size_t bucket = place_of_[parameter].bucket;
    if (bucket < works_.size()) {
      throw UsageError(
          "ddp: a parameter got a second gradient in one backward, after its bucket was sent; this "
          "happens with re-entrant (checkpointed) backward, which is not supported yet");
    }
    const c10::AutoGradMode no_grad(false);
    slice(parameter).copy_(parameters_[parameter].grad());
    if (!is_ready_[parameter]) {
      is_ready_[parameter] = true;
      --num_missing_[bucket];
    }
    launch_full_buckets();
  }

  void launch_full_buckets() {
    while (works_.size() < buckets_.size() && num_missing_[works_.size()] == 0) {
      works_.push_back(
          group_.all_reduce_async(buckets_[works_.size()].flat, {.op = ReduceOp::Average}));
    }
  }

  void finish_backward() {
    const std::lock_guard lock(mutex_);
    const c10::AutoGradMode no_grad(false);
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (!is_ready_[i]) {
        slice(i).zero_();  // this rank's backward did not reach it
      }
    }
    std::fill(num_missing_.begin(), num_missing_.end(), size_t{0});
    launch_full_buckets();
    std::vector<Work> works;
    works.swap(works_);
    reset();  // also when a wait below throws: the next backward starts afresh
    for (Work& work : works) {
      work.wait();
    }
    for (size_t i = 0; i < parameters_.size(); ++i) {
      at::Tensor& gradient = parameters_[i].mutable_grad();
      if (gradient.defined()) {
        gradient.copy_(slice(i));
      } else {
        gradient = slice(i).clone();
      }
    }
  }

  std::shared_ptr<torch::nn::Module> module_;
  Group group_;
  DdpOptions options_;
  std::vector<at::Tensor> parameters_;
  std::vector<Bucket> buckets_;
  std::vector<Place> place_of_;  // by parameter
  std::vector<std::pair<std::shared_ptr<torch::autograd::Node>, uintptr_t>> hooks_;

  std::mutex mutex_;  // guards the state of one backward, below
  std::vector<bool> is_ready_;
  std::vector<size_t> num_missing_;  // gradients, by bucket
  std::vector<Work> works_;          // of the buckets launched so far, in order
  bool in_backward_ = false;
};

Reducer::Reducer(std::shared_ptr<torch::nn::Module> module, Group group, DdpOptions options)
    : impl_(std::make_shared<Impl>(std::move(module), std::move(group), options)) {
  impl_->watch_gradients();
}

Reducer::~Reducer() = default;

}  // namespace lockstep
