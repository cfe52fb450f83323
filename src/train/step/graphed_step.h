#pragma once

// When a step is recorded as a graph, when it is replayed, and when its operations are queued one
// by one ("eagerly"), with the reason: the decisions, and the inputs at fixed addresses. What a
// step does is the caller's (step_graph.cpp).

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/comm/group.h>
#include <lockstep/data/batch.h>
#include <lockstep/train/trainer.h>

#include "device/graph.h"

namespace torch::nn {
class Module;
}

namespace lockstep::train {

// Null if steps are to be queued eagerly, with the reason in the log if a graph was wanted.
std::shared_ptr<device::Graphs> choose_graphs(const TrainerOptions& options, const Group& group,
                                              at::Device device);

// Threads: the trainer's, with the graphs' stream as the current one.
class GraphedStep {
 public:
  // So many steps are eager before one is recorded: libraries choose their algorithms in them, and
  // what is made once (workspaces, buckets, sums) is made there and not in the recording.
  static constexpr int kWarmUpSteps = 3;
  // A model whose tensors move again and again is not recorded for ever.
  static constexpr int kMostRecordings = 3;

  GraphedStep(std::shared_ptr<device::Graphs> graphs, std::shared_ptr<torch::nn::Module> module,
              at::Device device);

  enum class Way { Eager, Record, Replay };
  // What to do with a step that has these batches, one for each piece. Logs each reason for Eager
  // once.
  Way choose(const std::vector<Batch>& batches);

  // Records `work` on batches like these, at addresses of its own. False if that cannot be done:
  // then nothing has been done, the reason is in the log, and all steps are eager from here on.
  using Work = std::function<void(const std::vector<Batch>& inputs, device::Recorder& recorder)>;
  bool record(const std::vector<Batch>& batches, const Work& work);

  // Replays on these batches, which are copied; they may go when it returns.
  void replay(const std::vector<Batch>& batches, const std::vector<uint64_t>& seeds);

 private:
  // What a recording takes for granted of the model: where its tensors are and which are trained.
  struct ModelState {
    std::vector<const void*> places;
    std::vector<bool> is_trained;
    bool operator==(const ModelState&) const = default;
  };
  ModelState model_state() const;
  void forget_if_moved();
  void stage(const std::vector<Batch>& batches);
  void stop(const std::string& reason);
  void tell_once(bool& is_told, const std::string& reason);

  std::shared_ptr<device::Graphs> graphs_;
  std::shared_ptr<torch::nn::Module> module_;
  at::Device device_;
  std::vector<at::Tensor> watched_;  // parameters and buffers
  std::unique_ptr<device::Graph> graph_;
  ModelState recorded_state_;
  std::vector<Batch> inputs_;
  std::string shape_;  // of the batches that were recorded, or of the last ones
  int num_eager_ = 0;
  int num_recordings_ = 0;
  bool is_off_ = false;
  bool has_told_shapes_ = false;
  bool has_told_unsettled_ = false;
};

}  // namespace lockstep::train
