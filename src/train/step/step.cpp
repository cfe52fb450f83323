#include "train/step/step.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <mutex>
#include <optional>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include "base/dice.h"
#include "comm/agree.h"
#include "ddp/model_check.h"
#include "train/device_settings.h"
#include "train/step/out_of_memory.h"
#include "train/step/own_optimizer.h"
#include "train/step/parameter_groups.h"

namespace lockstep::train {
namespace {

constexpr uint64_t kStream = 0x73746570;  // sets these numbers apart from the data's

void seed_generator(at::Device device, uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
}

void seed_generators(at::Device device, uint64_t bits) {
  seed_generator(at::kCPU, bits);
  if (!device.is_cpu()) {
    seed_generator(device, bits);
  }
}

std::vector<at::Tensor> buffers_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> buffers;
  for (const auto& item : module.named_buffers()) {
    buffers.push_back(item.value());
  }
  return buffers;
}

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(tensor.clone());
  }
  return copies;
}

// Freezes what is to be frozen, before the reducer looks for what needs a gradient.
AssignedParameters assign(const torch::nn::Module& module, Group& group,
                          const TrainerOptions& options) {
  std::optional<AssignedParameters> assigned;
  const auto ask = [&] { assigned.emplace(module, options); };
  if (options.groups.empty()) {
    ask();
    return std::move(*assigned);
  }
  comm::throw_together(group, comm::caught(ask));
  if (group.size() > 1) {
    ddp::check_same_lines(group, assigned->description(),
                          {.what = "trainer: the parameter groups differ between ranks",
                           .advice = "give every rank the same groups"});
  }
  assigned->freeze();
  return std::move(*assigned);
}

}  // namespace

StepRunner::StepRunner(TrainingTask& task, Group group, const Setting& setting)
    : task_(task),
      module_(task.module()),
      group_(std::move(group)),
      options_(setting.options),
      pieces_(setting.pieces),
      device_(setting.device),
      in_tree_(std::has_single_bit(static_cast<unsigned>(pieces_.num_all)) ||
               pieces_.num_all == group_.size()),
      buffers_(buffers_of(*module_)),
      parameters_(assign(*module_, group_, options_)),
      reducer_(module_, group_,
               {.shards = in_tree_ && pieces_.num_all != group_.size() ? pieces_.num_all : 0}),
      optimizer_(options_.make_optimizer ? make_own_optimizer(*module_, options_, group_)
                                         : make_optimizer(parameters_, options_)),
      average_(*module_, options_.ema_decay),
      bad_steps_(options_),
      loss_scale_(options_.precision),
      seen_(pieces_.num_all) {
  use_graphs(setting.graphs);
}

double StepRunner::run(const Inputs& inputs) {
  const auto advice = [&] {
    return MemoryAdvice{.what = fmt::format("step {}, a piece of {} samples at a time,",
                                            inputs.step, pieces_.batch_size),
                        .way_out = smaller_pieces(options_, pieces_.batch_size)};
  };
  const auto step = [&] {
    return explain_out_of_memory(
        [&] { return graphed_ ? take_graphed_step(inputs) : take_eager_step(inputs); }, advice);
  };
  return explain_nondeterminism(step, [&] { return fmt::format("step {}", inputs.step); });
}

// Dropout and whatever else a model draws comes from (seed, step, piece) and nothing before it.
uint64_t StepRunner::seed_of(int64_t step, int piece) const {
  const auto number = static_cast<uint64_t>(step * pieces_.num_all + piece);
  return base::Dice(options_.seed ^ kStream, number).bits();
}

void StepRunner::run_pieces(const Inputs& inputs) {
  find_faults_.clear();
  std::vector<at::Tensor> first_buffers;
  for (int local = 0; local < pieces_.num_local; ++local) {
    run_piece(local, inputs);
    if (local == 0 && pieces_.num_local > 1) {
      first_buffers = copies_of(buffers_);
    }
  }
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < first_buffers.size(); ++i) {
    buffers_[i].copy_(first_buffers[i]);  // they follow the first piece
  }
}

double StepRunner::take_eager_step(const Inputs& inputs) {
  run_pieces(inputs);
  const at::NoGradGuard no_grad;
  const double scale = loss_scale_.value();
  const double max_norm =
      options_.clip_norm > 0 ? options_.clip_norm * scale : std::numeric_limits<double>::infinity();
  const double grad_norm = reducer_.clip_grad_norm(max_norm) / scale;
  const bool is_taken = accept(inputs.step, grad_norm);
  if (inputs.before_update) {
    inputs.before_update();
  }
  if (is_taken) {
    if (scale != 1) {
      optimizer_->scale_gradients(1 / scale);
    }
    optimizer_->step(inputs.lr);
    average_.update();
  }
  optimizer_->zero_grad();
  ++num_seen_steps_;
  return grad_norm;
}

// Whether the step is to change the parameters, once its gradient is known. All ranks come to the
// same answer.
bool StepRunner::accept(int64_t step, double grad_norm) {
  if (!std::isfinite(grad_norm)) {
    find_faults();
  }
  if (loss_scale_.update(std::isfinite(grad_norm))) {
    bad_steps_.count_left_out();
    return false;
  }
  return bad_steps_.accept(step, grad_norm);
}

at::Tensor StepRunner::scaled(const at::Tensor& loss, const Inputs& inputs) const {
  const double share = in_tree_ ? 1 : 1.0 / pieces_.num_local;
  if (inputs.recorder != nullptr && loss_scale_.is_dynamic()) {
    return loss * (numbers_->loss_scale() * share).to(at::kFloat);
  }
  const double factor = share * loss_scale_.value();
  return factor == 1 ? loss : loss * factor;
}

void StepRunner::run_piece(int local, const Inputs& inputs) {
  const int piece = pieces_.first + local;
  const bool is_last = local + 1 == pieces_.num_local;
  std::optional<NoSync> no_sync;
  if (!in_tree_ && !is_last) {
    no_sync.emplace(reducer_);
  }
  const Batch batch = inputs.next_batch();
  if (inputs.recorder != nullptr) {
    inputs.recorder->draw_from(static_cast<size_t>(local));
  } else {
    seed_generators(device_, seed_of(inputs.step, piece));
  }
  TaskOutput output;
  {
    const Autocast autocast(options_.precision, device_.type());
    reducer_.begin_forward();
    output = task_.forward(batch);
    reducer_.end_forward({output.loss});
  }
  scaled(output.loss, inputs).backward();
  seen_.add(piece, output, batch);
  if (output.find_fault) {
    find_faults_.push_back(std::move(output.find_fault));
  }
  if (inputs.fetch_ahead) {
    inputs.fetch_ahead();
  }
}

// The gradients are the same on all ranks, so that all come here or none.
void StepRunner::find_faults() {
  comm::throw_together(group_, comm::caught([this] {
                         for (const auto& find_fault : find_faults_) {
                           find_fault();
                         }
                       }));
}

SeenSums StepRunner::take_sums() {
  const at::Tensor all = seen_.read();
  group_.all_reduce(all);  // the other ranks' pieces are zeros here: nothing is rounded
  const auto* row = all.const_data_ptr<double>();
  double loss = 0, counted = 0, correct = 0;
  for (int piece = 0; piece < pieces_.num_all; ++piece, row += Tally::NumColumns) {
    loss += row[Tally::Loss];
    counted += row[Tally::Counted];
    correct += row[Tally::Correct];
  }
  const auto num_losses =
      static_cast<double>(pieces_.num_all * std::max<int64_t>(num_seen_steps_, 1));
  seen_.clear();
  num_seen_steps_ = 0;
  return {.loss = loss / num_losses,
          .num_counted = static_cast<int64_t>(counted),
          .num_correct = correct < 0 ? -1 : static_cast<int64_t>(correct)};
}

void StepRunner::share_buffers() {
  for (const at::Tensor& buffer : buffers_) {
    if (group_.size() > 1) {
      group_.broadcast(buffer);
    }
  }
}

}  // namespace lockstep::train
