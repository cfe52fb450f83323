#include "train/step/step.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <mutex>
#include <optional>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/nn/module.h>

#include "base/dice.h"
#include "comm/agree.h"
#include "ddp/model_check.h"
#include "train/evaluate.h"
#include "train/step/own_optimizer.h"
#include "train/step/parameter_groups.h"

namespace lockstep::train {
namespace {

constexpr size_t kPieceColumns = 3;       // of a piece: losses, counted, correct
constexpr uint64_t kStream = 0x73746570;  // sets these numbers apart from the data's

// Dropout and whatever else a model draws, from (seed, step, piece) and nothing before it.
void seed_generator(uint64_t seed, int64_t step, int num_pieces, int piece) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  const auto number = static_cast<uint64_t>(step * num_pieces + piece);
  generator.set_current_seed(base::Dice(seed ^ kStream, number).bits());
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
std::shared_ptr<torch::nn::Module> prepare(std::shared_ptr<torch::nn::Module> module, Group& group,
                                           const TrainerOptions& options) {
  if (!options.groups.empty()) {
    std::vector<std::string> lines;
    comm::throw_together(group, comm::caught([&] {
                           lines = describe_groups(*module, options);
                           freeze_parameters(*module, options);
                         }));
    if (group.size() > 1) {
      ddp::check_same_lines(group, lines,
                            {.what = "trainer: the parameter groups differ between ranks",
                             .advice = "give every rank the same groups"});
    }
  }
  return module;
}

}  // namespace

StepRunner::StepRunner(TrainingTask& task, Group group, const TrainerOptions& options,
                       const Pieces& pieces)
    : task_(task),
      module_(task.module()),
      group_(std::move(group)),
      options_(options),
      pieces_(pieces),
      in_tree_(std::has_single_bit(static_cast<unsigned>(pieces.num_all)) ||
               pieces.num_all == group_.size()),
      buffers_(buffers_of(*module_)),
      reducer_(prepare(module_, group_, options), group_,
               {.shards = in_tree_ && pieces.num_all != group_.size() ? pieces.num_all : 0}),
      optimizer_(options.make_optimizer ? make_own_optimizer(*module_, options, group_)
                                        : make_optimizer(*module_, options)),
      average_(*module_, options.ema_decay),
      bad_steps_(options),
      loss_scale_(options.precision),
      seen_(static_cast<size_t>(pieces.num_all) * kPieceColumns) {}

double StepRunner::run(const Inputs& inputs) {
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
  const double scale = loss_scale_.value();
  const double max_norm =
      options_.clip_norm > 0 ? options_.clip_norm * scale : std::numeric_limits<double>::infinity();
  const double grad_norm = reducer_.clip_grad_norm(max_norm) / scale;
  const bool is_scale_overflow = loss_scale_.update(std::isfinite(grad_norm));
  if (inputs.before_update) {
    inputs.before_update();
  }
  if (is_scale_overflow) {
    bad_steps_.count_left_out();
  } else if (bad_steps_.accept(inputs.step, grad_norm)) {
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

void StepRunner::run_piece(int local, const Inputs& inputs) {
  const int piece = pieces_.first + local;
  const bool is_last = local + 1 == pieces_.num_local;
  std::optional<NoSync> no_sync;
  if (!in_tree_ && !is_last) {
    no_sync.emplace(reducer_);
  }
  const Batch batch = inputs.next_batch();
  seed_generator(options_.seed, inputs.step, pieces_.num_all, piece);
  TaskOutput output;
  {
    const Autocast autocast(options_.precision);
    reducer_.begin_forward();
    output = task_.forward(batch);
    reducer_.end_forward({output.loss});
  }
  const double share = in_tree_ ? 1 : 1.0 / pieces_.num_local;
  const double factor = share * loss_scale_.value();
  (factor == 1 ? output.loss : output.loss * factor).backward();
  double* seen = seen_.data() + static_cast<size_t>(piece) * kPieceColumns;
  seen[0] += output.loss.item<double>();
  seen[1] += static_cast<double>(num_counted(output, batch));
  seen[2] += static_cast<double>(output.num_correct);
}

SeenSums StepRunner::take_sums() {
  const at::Tensor all = at::from_blob(seen_.data(), {static_cast<int64_t>(seen_.size())},
                                       at::TensorOptions().dtype(at::kDouble));
  group_.all_reduce(all);  // the other ranks' pieces are zeros here: nothing is rounded
  double loss = 0, counted = 0, correct = 0;
  for (size_t i = 0; i < seen_.size(); i += kPieceColumns) {
    loss += seen_[i];
    counted += seen_[i + 1];
    correct += seen_[i + 2];
  }
  const auto num_losses =
      static_cast<double>(pieces_.num_all * std::max<int64_t>(num_seen_steps_, 1));
  std::fill(seen_.begin(), seen_.end(), 0);
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
