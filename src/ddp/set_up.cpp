// What happens at construction, and again when the group or the buckets change; see reducer_impl.h
// for the rest.

#include <algorithm>
#include <bit>
#include <numeric>

#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/env.h"
#include "comm/start/host_cores.h"
#include "ddp/bucket_plan.h"
#include "ddp/model_check.h"
#include "ddp/reducer_impl.h"

namespace lockstep {
namespace {

// Lists all that decides which collectives a rank calls, and when. `ignored` shows in the model.
std::vector<std::string> describe(const DdpOptions& options) {
  static constexpr const char* kOverlaps[] = {"Auto", "Always", "Never"};
  return {fmt::format("bucket_bytes = {}", options.bucket_bytes),
          fmt::format("first_bucket_bytes = {}", options.first_bucket_bytes),
          fmt::format("overlap = {}", kOverlaps[static_cast<int>(options.overlap)]),
          fmt::format("find_unused_parameters = {}", options.find_unused_parameters),
          fmt::format("static_graph = {}", options.static_graph),
          fmt::format("broadcast_buffers = {}", options.broadcast_buffers),
          fmt::format("init_sync = {}", options.init_sync),
          fmt::format("replace_cpu_allocator = {}", options.replace_cpu_allocator),
          fmt::format("shards = {}", options.shards),
          fmt::format("verify_every = {}", options.verify_every),
          options.comm_hook ? "a comm_hook" : "no comm_hook"};
}

// What the environment of this process says about DdpOptions::replace_cpu_allocator.
bool may_replace_cpu_allocator() {
  const std::string text = base::Env().text("LOCKSTEP_CPU_ALLOCATOR").value_or("lockstep");
  if (text != "lockstep" && text != "torch") {
    throw UsageError("LOCKSTEP_CPU_ALLOCATOR={} is not known; it is lockstep or torch", text);
  }
  return text == "lockstep";
}

}  // namespace

Reducer::Impl::Impl(std::shared_ptr<torch::nn::Module> module, Group group, DdpOptions options)
    : module_(std::move(module)), group_(std::move(group)), options_(std::move(options)) {
  options_.replace_cpu_allocator = may_replace_cpu_allocator() && options_.replace_cpu_allocator;
  if (group_.size() > 1) {
    ddp::check_same_lines(group_, describe(options_),
                          {.what = "ddp: the options differ between ranks",
                           .advice = "give every rank the same DdpOptions"});
  }
  check_options();
  tensors_ = ddp::tensors_of(*module_, options_.ignored);
  set_shards();
  if (group_.size() > 1) {
    ddp::NamedTensors everything = tensors_.parameters;
    everything.insert(everything.end(), tensors_.buffers.begin(), tensors_.buffers.end());
    ddp::check_same_model(group_, everything);
    if (options_.init_sync) {
      const c10::AutoGradMode no_grad(false);
      ddp::broadcast_tensors(group_, everything, 0, 25 << 20);
    }
    if (options_.broadcast_buffers) {
      buffers_ = ddp::BufferSync(group_, tensors_.buffers);
    }
  }
}

Reducer::Impl::~Impl() {
  for (const auto& [node, key] : hooks_) {
    node->del_post_hook(key);
  }
}

void Reducer::Impl::check_options() const {
  if (options_.bucket_bytes < 0 || options_.first_bucket_bytes < 1) {
    throw UsageError("ddp: bucket_bytes = {} and first_bucket_bytes = {} must be at least 1",
                     options_.bucket_bytes, options_.first_bucket_bytes);
  }
  if (options_.verify_every < 0) {
    throw UsageError("ddp: verify_every = {} must not be negative", options_.verify_every);
  }
}

void Reducer::Impl::set_shards() {
  const int size = group_.size();
  num_local_shards_ = 1;
  if (options_.shards == 0) {
    return;
  }
  if (!std::has_single_bit(static_cast<unsigned>(std::max(options_.shards, 0))) ||
      options_.shards % size != 0) {
    throw UsageError(
        "ddp: shards = {} must be a power of two and a multiple of the group's size {}",
        options_.shards, size);
  }
  num_local_shards_ = options_.shards / size;
  if (num_local_shards_ == 1) {
    return;
  }
  for (const ddp::TrainedParameter& parameter : tensors_.trained) {
    const auto type = parameter.tensor.scalar_type();
    if (parameter.has_sparse_gradient || (type != at::kFloat && type != at::kDouble)) {
      throw UsageError(
          "ddp: parameter '{}' has {} gradients; several shards per rank need dense float32 or "
          "float64 ones",
          parameter.name, parameter.has_sparse_gradient ? "sparse" : c10::toString(type));
    }
  }
}

// A group of one with nothing special to do costs nothing: no memory, no hooks.
bool Reducer::Impl::is_needed() const {
  return group_.size() > 1 || num_local_shards_ > 1 || options_.comm_hook || optimizer_;
}

// The order of collectives depends on it, so that all ranks must come to the same answer: it is
// made of what all of them may use together, and not of one rank's binding.
void Reducer::Impl::choose_overlap() {
  if (is_on_device_) {  // the host is free while the device computes
    overlaps_ = options_.overlap != Overlap::Never;
    return;
  }
  if (options_.overlap != Overlap::Auto || group_.backend_name() != "shm") {
    overlaps_ = options_.overlap != Overlap::Never;
    return;
  }
  const int num_cores = comm::host_cores(group_).front().num_cores;
  overlaps_ = group_.size() < num_cores;
  log::debug("ddp", "buckets are reduced {}: {} ranks, {} cores",
             overlaps_ ? "while backward computes" : "at the end of backward", group_.size(),
             num_cores);
}

void Reducer::Impl::start() {
  if (memory_ || !is_needed()) {
    return;
  }
  ddp::check_one_device(tensors_);
  is_on_device_ = ddp::takes_device_path(tensors_.trained.front().device);
  choose_overlap();
  memory_.emplace(group_, tensors_.trained,
                  ddp::GradientMemoryOptions{.allows_large = num_local_shards_ == 1 &&
                                                             options_.replace_cpu_allocator});
  stream_order_.watch(memory_->memory());
  arrival_order_.resize(tensors_.trained.size());
  std::iota(arrival_order_.rbegin(), arrival_order_.rend(), size_t{0});  // last layer first
  was_used_.assign(tensors_.trained.size(), false);
  if (num_local_shards_ > 1) {
    shard_sum_.emplace(tensors_.trained.size());
  }
  if (options_.bucket_bytes == kAutoBucketBytes) {
    int64_t bytes = 0;
    for (const ddp::TrainedParameter& parameter : tensors_.trained) {
      bytes += static_cast<int64_t>(parameter.tensor.nbytes());
    }
    tuner_.emplace(bytes);
  }
  lay_out_buckets();
  watch_gradients();
}

ddp::BucketLimits Reducer::Impl::limits() const {
  return {.bucket_bytes = tuner_ ? tuner_->bucket_bytes() : options_.bucket_bytes,
          .first_bucket_bytes = options_.first_bucket_bytes,
          .alone_bytes =
              num_local_shards_ == 1 && !is_on_device_ ? ddp::kLargeGradientBytes : INT64_MAX};
}

void Reducer::Impl::lay_out_buckets() {
  const c10::AutoGradMode no_grad(false);
  std::vector<ddp::GradientSize> sizes;
  std::vector<size_t> dense_order;
  for (const ddp::TrainedParameter& parameter : tensors_.trained) {
    sizes.push_back(
        {static_cast<int64_t>(parameter.tensor.nbytes()), parameter.tensor.scalar_type()});
  }
  for (const size_t i : arrival_order_) {
    if (!tensors_.trained[i].has_sparse_gradient) {
      dense_order.push_back(i);
    }
  }
  memory_->lay_out(ddp::plan_buckets(sizes, dense_order, limits()));
  log::debug("ddp", "{} parameters in {} buckets", tensors_.trained.size(),
             memory_->buckets().size());
}

void Reducer::Impl::watch_gradients() {
  for (size_t i = 0; i < tensors_.trained.size(); ++i) {
    const auto node = torch::autograd::impl::grad_accumulator(tensors_.trained[i].tensor);
    auto hook = [weak = weak_from_this(), i](const torch::autograd::variable_list& outputs,
                                             const torch::autograd::variable_list&) {
      if (const auto self = weak.lock()) {
        self->on_gradient(i);
      }
      return outputs;
    };
    const auto key =
        node->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(hook));
    hooks_.emplace_back(node, key);  // holding the node keeps it, and so the hook, from being made
                                     // anew
  }
}

}  // namespace lockstep
