#include "train/step/graphed_step.h"

#include <algorithm>

#include <ATen/ops/empty_strided.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

namespace lockstep::train {
namespace {

constexpr const char* kWaitsHint =
    ". What is recorded may not wait for the GPU: look in forward() for item(), for copies to or "
    "from the host, and for shapes that depend on values";

std::vector<at::Tensor> tensors_of(const Batch& batch) {
  std::vector<at::Tensor> tensors;
  batch.for_each_tensor(
      [&](const std::string& /*name*/, const at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

// Equal for batches that a recording cannot tell apart: names, types, sizes and strides, and which
// names share a tensor.
std::string shape_of(const std::vector<Batch>& batches) {
  std::string text;
  for (const Batch& batch : batches) {
    const std::vector<std::string> names = batch.names();
    const std::vector<at::Tensor> tensors = tensors_of(batch);
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto same = std::find_if(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
        return tensor.is_same(tensors[i]);
      });
      text +=
          fmt::format("{}={} {} [{}] by [{}] on {}; ", names[i], same - tensors.begin(),
                      c10::toString(tensors[i].scalar_type()), fmt::join(tensors[i].sizes(), ", "),
                      fmt::join(tensors[i].strides(), ", "), tensors[i].device().str());
    }
  }
  return text;
}

// Why batches like these cannot have copies at fixed addresses; empty if they can.
std::string refusal(const std::vector<Batch>& batches, at::Device device) {
  std::string reason;
  for (const Batch& batch : batches) {
    batch.for_each_tensor([&](const std::string& name, const at::Tensor& tensor) {
      if (!tensor.is_non_overlapping_and_dense()) {
        reason = fmt::format("the batches' tensor \"{}\" is not dense in memory", name);
      } else if (tensor.device() != device) {
        reason = fmt::format("the batches' tensor \"{}\" is on {}, and the step on {}", name,
                             tensor.device().str(), device.str());
      }
    });
  }
  return reason;
}

at::Tensor empty_like_exactly(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options());
}

// The part of libtorch's text that is for users.
std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace

std::shared_ptr<device::Graphs> choose_graphs(const TrainerOptions& options, const Group& group,
                                              at::Device device) {
  if (options.graph == TrainGraph::Off) {
    return nullptr;
  }
  std::string problem;
  if (group.size() > 1) {
    problem = fmt::format(
        "gradients of {} ranks are added by way of the host, for which a graph cannot wait",
        group.size());
  } else {
    device::MadeGraphs made = device::make_graphs(device);
    if (made.graphs) {
      return {std::move(made.graphs)};
    }
    problem = made.problem;
  }
  if (group.rank() == 0) {
    log::info("train", "no graph, as train.graph = \"auto\": {}", problem);
  }
  return nullptr;
}

GraphedStep::GraphedStep(std::shared_ptr<device::Graphs> graphs,
                         std::shared_ptr<torch::nn::Module> module, at::Device device)
    : graphs_(std::move(graphs)),
      module_(std::move(module)),
      device_(device),
      watched_(module_->parameters()) {
  const std::vector<at::Tensor> buffers = module_->buffers();
  watched_.insert(watched_.end(), buffers.begin(), buffers.end());
}

GraphedStep::Way GraphedStep::choose(const std::vector<Batch>& batches) {
  if (is_off_) {
    return Way::Eager;
  }
  forget_if_moved();
  const std::string shape = shape_of(batches);
  const bool is_known = shape == shape_;
  if (graph_) {
    if (!is_known) {
      tell_once(has_told_shapes_,
                "a batch has other shapes than the recorded ones: such steps are queued one "
                "operation at a time, the others are replayed");
    }
    return is_known ? Way::Replay : Way::Eager;
  }
  shape_ = shape;
  if (num_eager_ < kWarmUpSteps) {
    ++num_eager_;
    return Way::Eager;
  }
  if (!is_known) {
    tell_once(has_told_unsettled_,
              "the shapes of the batches change: a step is recorded once two that follow each "
              "other are alike");
    return Way::Eager;
  }
  if (const std::string reason = refusal(batches, device_); !reason.empty()) {
    stop(reason);
    return Way::Eager;
  }
  return Way::Record;
}

bool GraphedStep::record(const std::vector<Batch>& batches, const Work& work) {
  inputs_.clear();
  try {
    for (const Batch& batch : batches) {
      inputs_.push_back(batch.map(empty_like_exactly));
    }
    stage(batches);
    graph_ = graphs_->record(batches.size(),
                             [&](device::Recorder& recorder) { work(inputs_, recorder); });
  } catch (const std::exception& error) {
    const std::string text = first_line(error.what());
    const bool is_about_waits = text.find("captur") != std::string::npos;
    stop(fmt::format("the step cannot be recorded: {}{}", text, is_about_waits ? kWaitsHint : ""));
    return false;
  }
  recorded_state_ = model_state();
  ++num_recordings_;
  log::info("train", "steps are one graph from here on (train.graph = \"auto\")");
  return true;
}

void GraphedStep::replay(const std::vector<Batch>& batches, const std::vector<uint64_t>& seeds) {
  stage(batches);
  graph_->replay(seeds);
}

// Copies the batches to where the recording reads them.
void GraphedStep::stage(const std::vector<Batch>& batches) {
  for (size_t i = 0; i < batches.size(); ++i) {
    const std::vector<at::Tensor> from = tensors_of(batches[i]), to = tensors_of(inputs_[i]);
    for (size_t k = 0; k < to.size(); ++k) {
      const bool is_copied = std::any_of(to.begin(), to.begin() + static_cast<std::ptrdiff_t>(k),
                                         [&](const at::Tensor& one) { return one.is_same(to[k]); });
      if (!is_copied) {
        to[k].copy_(from[k], /*non_blocking=*/true);
      }
    }
  }
}

GraphedStep::ModelState GraphedStep::model_state() const {
  ModelState state;
  for (const at::Tensor& tensor : watched_) {
    state.places.push_back(tensor.const_data_ptr());
    state.is_trained.push_back(tensor.requires_grad());
  }
  state.is_trained.push_back(module_->is_training());
  return state;
}

// A replay would go on with what was there: freed memory, perhaps.
void GraphedStep::forget_if_moved() {
  if (!graph_ || model_state() == recorded_state_) {
    return;
  }
  graph_.reset();
  inputs_.clear();
  num_eager_ = 0;
  if (num_recordings_ >= kMostRecordings) {
    stop(
        fmt::format("the model's tensors have moved, or others were trained, after each of {} "
                    "recordings",
                    num_recordings_));
  } else {
    log::info("train",
              "the model's tensors have moved, or others are trained: the step is recorded anew");
  }
}

void GraphedStep::stop(const std::string& reason) {
  is_off_ = true;
  graph_.reset();
  inputs_.clear();
  log::warn("train", "no graph, as train.graph = \"auto\": {}", reason);
}

void GraphedStep::tell_once(bool& is_told, const std::string& reason) {
  if (!is_told) {
    is_told = true;
    log::info("train", "graph: {}", reason);
  }
}

}  // namespace lockstep::train
