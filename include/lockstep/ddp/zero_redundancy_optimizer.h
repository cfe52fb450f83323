#pragma once

// ZeroRedundancyOptimizer: an optimizer whose state is spread over the ranks.
//
// After DistributedDataParallel's backward every rank has the same gradients, so an ordinary
// optimizer keeps the same state W times; for AdamW that is twice the size of the model on every
// rank. Here each parameter has one owner. Only the owner keeps its state and updates it, and then
// the new values go to all ranks. The bits are those of the ordinary optimizer, and the state has
// 1/W of its size.
//
// Example:
//   lockstep::DistributedDataParallel ddp(model, group);
//   lockstep::ZeroRedundancyOptimizer<torch::optim::AdamW> optimizer(
//       model->parameters(), torch::optim::AdamWOptions(1e-3), group);
//   torch::optim::StepLR schedule(optimizer, 10);  // the optimizer is a torch::optim::AdamW
//   loss(ddp(batch.input), batch.target).backward();
//   optimizer.step();         // collective
//   optimizer.consolidate();  // collective: collects the whole state on rank 0
//   if (group.rank() == 0) {
//     torch::save(optimizer, "optimizer.pt");  // the file that torch::optim::AdamW would write
//   }
//   group.barrier();
//   torch::load(optimizer, "optimizer.pt");  // on every rank: each keeps its share
//
// Files can be exchanged: a plain optimizer loads one that was saved here and the other way round,
// and the number of ranks may change between saving and loading.
//
// Owners are the same everywhere: the largest parameter comes first, and each goes to the rank that
// has the least so far. Parameters travel in one flat buffer of the group's memory. That takes one
// all-gather, or one broadcast per rank where one parameter is so large that padding would cost
// more than a quarter.
//
// Parameter groups with options of their own, add_param_group(), zero_grad(), closures and learning
// rate schedules work as they do in Base. Change options such as the learning rate on all ranks,
// since a parameter's update uses those of its owner. A parameter that has no gradient on its owner
// is not updated.
//
// Any torch::optim optimizer that treats each parameter by itself can be the Base: SGD, Adam,
// AdamW, Adagrad, RMSprop, or a class of yours with save() and load() written as theirs. LBFGS
// looks at all parameters at once, and the compiler refuses it.

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <lockstep/comm/group.h>

namespace lockstep {

struct ZeroOptions {
  // true makes the parameters views of the flat buffer, which saves the copies in step() and the
  // second copy of the model in memory. Whatever else points to a parameter's old memory then sees
  // no more updates.
  bool parameters_as_views = false;
};

// The part of ZeroRedundancyOptimizer that does not depend on the optimizer's type. Do not use it
// directly.
class ZeroShards {
 public:
  using ParamGroups = std::vector<torch::optim::OptimizerParamGroup>;

  ZeroShards(Group group, ZeroOptions options, const ParamGroups& groups);
  ~ZeroShards();
  ZeroShards(const ZeroShards&) = delete;
  ZeroShards& operator=(const ZeroShards&) = delete;

  void add(const ParamGroups& groups);
  void step(torch::optim::Optimizer& optimizer, const std::function<void()>& step_own);
  void consolidate(torch::optim::Optimizer& optimizer, int to,
                   const std::function<void(torch::serialize::OutputArchive&)>& save_own,
                   const std::function<void(torch::serialize::InputArchive&)>& load_own);
  void save(torch::optim::Optimizer& optimizer, const std::function<void()>& save_whole);
  void load(torch::optim::Optimizer& optimizer, const std::function<void()>& load_whole);
  void forget_foreign_state(torch::optim::Optimizer& optimizer);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// `Base` is torch::optim::AdamW or another. This class is a Base over all parameters, with the
// state of those that this rank owns.
// Threads: one thread at a time. step(), consolidate() and add_param_group() use the group, so no
// other thread may start its operations meanwhile. After a CommError in one of them the parameters
// may differ between ranks: load a checkpoint, and make a new optimizer over a new group.
template <typename Base>
class ZeroRedundancyOptimizer : public Base {
  static_assert(std::is_base_of_v<torch::optim::Optimizer, Base>);
  static_assert(!std::is_base_of_v<torch::optim::LBFGS, Base>,
                "LBFGS looks at all parameters at once: its state cannot be spread over ranks");

 public:
  using LossClosure = typename Base::LossClosure;
  using ParamGroups = ZeroShards::ParamGroups;

  // Collective. `base_options` are Base's own, such as torch::optim::AdamWOptions(1e-3). Throws
  // UsageError on every rank if there are no parameters, if one is there twice, or if they differ
  // between ranks in number, type, shape or group; the first difference is named. Values are not
  // compared, since DistributedDataParallel has made them equal.
  template <typename BaseOptions>
  ZeroRedundancyOptimizer(const ParamGroups& groups, const BaseOptions& base_options, Group group,
                          ZeroOptions options = {})
      : ZeroRedundancyOptimizer(groups, base_options,
                                std::make_unique<ZeroShards>(std::move(group), options, groups)) {}

  template <typename BaseOptions>
  ZeroRedundancyOptimizer(const std::vector<at::Tensor>& parameters,
                          const BaseOptions& base_options, Group group, ZeroOptions options = {})
      : ZeroRedundancyOptimizer(ParamGroups{torch::optim::OptimizerParamGroup(parameters)},
                                base_options, std::move(group), options) {}

  // Collective. Updates this rank's own parameters and then fetches the others from their owners.
  // When it returns, all ranks have all new values. What consolidate() collected is dropped.
  at::Tensor step(LossClosure closure = nullptr) override {
    at::Tensor loss;
    if (closure) {
      const at::AutoGradMode with_gradients(true);
      loss = closure();
    }
    shards_->step(*this, [this] { Base::step(); });
    return loss;
  }

  // Collective. Collects the state of all ranks on rank `to`, so that save() can write it there.
  // That rank holds the whole state in memory until the next step.
  void consolidate(int to = 0) {
    shards_->consolidate(
        *this, to, [this](torch::serialize::OutputArchive& archive) { Base::save(archive); },
        [this](torch::serialize::InputArchive& archive) { Base::load(archive); });
  }

  // Writes the whole state as Base would. It is not collective: call it on the rank to which
  // consolidate() was told to collect. Throws UsageError if that was not done since the last step;
  // a group of one does not need it.
  void save(torch::serialize::OutputArchive& archive) const override {
    auto& self = const_cast<ZeroRedundancyOptimizer&>(*this);  // the state is lent for the call
    shards_->save(self, [&] { Base::save(archive); });
  }

  // Reads a whole state, saved here or by a Base, and keeps this rank's share. It is not
  // collective: call it on every rank. Throws UsageError if the numbers of groups or parameters
  // differ.
  void load(torch::serialize::InputArchive& archive) override {
    shards_->load(*this, [&] { Base::load(archive); });
  }

  // Collective. Throws what the constructor throws.
  void add_param_group(const torch::optim::OptimizerParamGroup& param_group) {
    ParamGroups groups = this->param_groups();
    groups.push_back(param_group);
    shards_->add(groups);
    Base::add_param_group(param_group);
  }

 private:
  template <typename BaseOptions>
  ZeroRedundancyOptimizer(const ParamGroups& groups, const BaseOptions& base_options,
                          std::unique_ptr<ZeroShards> shards)
      : Base(groups, base_options), shards_(std::move(shards)) {
    shards_->forget_foreign_state(*this);  // Adagrad makes its state at once
  }

  std::unique_ptr<ZeroShards> shards_;
};

}  // namespace lockstep
