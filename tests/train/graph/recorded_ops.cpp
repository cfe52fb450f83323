#include "train/graph/recorded_ops.h"

#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

namespace lockstep::testing_support {
namespace {

// A key below autograd for which libtorch_cpu has nothing.
constexpr auto kKey = c10::DispatchKey::Fake;

struct Draw {
  size_t source = 0;
};
struct Call {
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;
  std::vector<c10::IValue> results;
};

std::vector<at::Tensor> tensors_in(const c10::IValue& value) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? std::vector{value.toTensor()} : std::vector<at::Tensor>();
  }
  if (value.isTensorList()) {
    return value.toTensorVector();
  }
  return {};
}

void copy_memory(const at::Tensor& to, const at::Tensor& from) {
  TORCH_CHECK(to.storage().nbytes() == from.storage().nbytes(), "a replay made ",
              from.storage().nbytes(), " bytes in the place of ", to.storage().nbytes());
  std::memcpy(to.storage().mutable_data(), from.storage().data(), to.storage().nbytes());
}

void seed(uint64_t number) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(number);
}

class Recording : public device::Recorder {
 public:
  void draw_from(size_t source) override { steps_.emplace_back(Draw{source}); }

  void call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) {
    static const std::set<std::string> kWaiting = {
        "aten::_local_scalar_dense", "aten::equal",    "aten::nonzero",
        "aten::is_nonzero",          "aten::_unique2", "aten::masked_select"};
    TORCH_CHECK(kWaiting.count(op.schema().name()) == 0,
                "CUDA error: operation not permitted when stream is capturing\n",
                op.schema().name());
    const auto num_arguments = static_cast<std::ptrdiff_t>(op.schema().arguments().size());
    Call call{op, {stack.end() - num_arguments, stack.end()}, {}};
    keep_what_is_written(call);
    const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, kKey);
    op.redispatchBoxed(keys & below, &stack);
    const auto num_results = static_cast<std::ptrdiff_t>(op.schema().returns().size());
    call.results.assign(stack.end() - num_results, stack.end());
    note_what_is_made(call);
    steps_.emplace_back(std::move(call));
  }

  // Nothing has been done.
  void undo() {
    for (const auto& [storage, values] : before_) {
      std::memcpy(values.first.mutable_data(), values.second.data(), values.second.size());
    }
    before_.clear();
  }

  void replay(const std::vector<uint64_t>& seeds) {
    const at::NoGradGuard no_grad;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    for (const auto& step : steps_) {
      if (const auto* const draw = std::get_if<Draw>(&step)) {
        seed(seeds.at(draw->source));
        continue;
      }
      const Call& call = std::get<Call>(step);
      torch::jit::Stack stack = call.arguments;
      call.op.callBoxed(stack);
      for (size_t i = 0; i < call.results.size(); ++i) {
        const std::vector<at::Tensor> to = tensors_in(call.results[i]), from = tensors_in(stack[i]);
        TORCH_CHECK(to.size() == from.size(), call.op.schema().name(), " returned others");
        for (size_t k = 0; k < to.size(); ++k) {
          if (to[k].storage().data() != from[k].storage().data()) {
            copy_memory(to[k], from[k]);
          }
        }
      }
    }
  }

  size_t size() const { return steps_.size(); }

 private:
  // A view has the memory of what it is a view of.
  void note_what_is_made(const Call& call) {
    std::set<const c10::StorageImpl*> given;
    for (const c10::IValue& argument : call.arguments) {
      for (const at::Tensor& tensor : tensors_in(argument)) {
        given.insert(tensor.storage().unsafeGetStorageImpl());
      }
    }
    for (const c10::IValue& result : call.results) {
      for (const at::Tensor& tensor : tensors_in(result)) {
        if (given.count(tensor.storage().unsafeGetStorageImpl()) == 0) {
          made_.insert(tensor.storage().unsafeGetStorageImpl());
        }
      }
    }
  }

  void keep_what_is_written(const Call& call) {
    const auto& arguments = call.op.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      const auto* const alias = arguments[i].alias_info();
      if (alias == nullptr || !alias->isWrite()) {
        continue;
      }
      for (const at::Tensor& tensor : tensors_in(call.arguments[i])) {
        keep(tensor.storage());
      }
    }
    // Batch norm's statistics are written by an operator whose schema does not say so.
    if (call.op.schema().name() == "aten::native_batch_norm") {
      for (const size_t statistics : {3, 4}) {
        for (const at::Tensor& tensor : tensors_in(call.arguments[statistics])) {
          keep(tensor.storage());
        }
      }
    }
  }

  void keep(const c10::Storage& storage) {
    const auto* const key = storage.unsafeGetStorageImpl();
    if (made_.count(key) == 0 && before_.count(key) == 0) {
      const auto* const data = static_cast<const char*>(storage.data());
      before_.emplace(key, std::pair(storage, std::string(data, storage.nbytes())));
    }
  }

  std::vector<std::variant<Draw, Call>> steps_;
  std::set<const c10::StorageImpl*> made_;  // alive: the calls hold them
  std::map<const c10::StorageImpl*, std::pair<c10::Storage, std::string>> before_;
};

Recording* current = nullptr;  // autograd runs on the recording thread, as there are no devices

void note(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard once(kKey);
  current->call(op, keys, *stack);
}

void register_key() {
  static torch::Library library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
  static const bool is_done = [] {
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&note>());
    return true;
  }();
  static_cast<void>(is_done);
}

class OpsGraph : public device::Graph {
 public:
  explicit OpsGraph(std::shared_ptr<GraphLog> log) : log_(std::move(log)) { ++log_->num_alive; }
  ~OpsGraph() override { --log_->num_alive; }

  void record(const std::function<void(device::Recorder&)>& work) {
    at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
    const at::Tensor numbers = generator.get_state();
    struct End {
      ~End() {
        current = nullptr;
        recording.undo();
        generator.set_state(numbers);
      }
      Recording& recording;
      at::Generator& generator;
      const at::Tensor& numbers;
    } const end{recording_, generator, numbers};
    current = &recording_;
    const c10::impl::IncludeDispatchKeyGuard noted(kKey);
    work(recording_);
  }
  void replay(const std::vector<uint64_t>& seeds) override {
    ++log_->num_replayed;
    recording_.replay(seeds);
  }
  size_t size() const { return recording_.size(); }

 private:
  std::shared_ptr<GraphLog> log_;
  Recording recording_;
};

class RecordedOps : public device::Graphs {
 public:
  explicit RecordedOps(std::shared_ptr<GraphLog> log) : log_(std::move(log)) { register_key(); }

  c10::Stream stream() const override { return c10::Stream(c10::Stream::DEFAULT, at::kCPU); }

  std::unique_ptr<device::Graph> record(
      size_t /*num_sources*/, const std::function<void(device::Recorder&)>& work) override {
    ++log_->num_begun;
    auto graph = std::make_unique<OpsGraph>(log_);
    graph->record(work);
    ++log_->num_recorded;
    log_->num_operators = graph->size();
    return graph;
  }

 private:
  std::shared_ptr<GraphLog> log_;
};

}  // namespace

std::unique_ptr<device::Graphs> make_recorded_ops(std::shared_ptr<GraphLog> log) {
  return std::make_unique<RecordedOps>(std::move(log));
}

}  // namespace lockstep::testing_support
