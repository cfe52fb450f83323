// Host code: libtorch's CUDAGraph knows what its allocator and its generators must do while work is
// recorded. The plug-in is loaded without libtorch, too (`lockstep doctor` looks at it), so every
// symbol of libtorch is weak here; libtorch_symbols.h lists them.

#include "cuda/graph.h"

#include <memory>
#include <string>

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Generator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>

#include "cuda/libtorch_symbols.h"

namespace lockstep::cuda {
namespace {

class StepGraph : public at::cuda::CUDAGraph {
 public:
  ~StepGraph() {
    if (is_recording_) {
      give_up();
    }
  }
  StepGraph() = default;
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  void begin() {
    is_recording_ = true;
    // Threads that read batches or write checkpoints may call what a recording forbids.
    capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  }
  void end() {
    capture_end();
    is_recording_ = false;
  }

 private:
  // CUDAGraph leaves libtorch as it is in the middle of a recording that fails: its allocator goes
  // on keeping memory for the graph, and its generators draw no more.
  void give_up() noexcept {
    cudaGraph_t unfinished = nullptr;
    cudaStreamEndCapture(capture_stream_, &unfinished);  // it may have ended
    if (unfinished != nullptr) {
      cudaGraphDestroy(unfinished);
    }
    cudaGetLastError();
    for (auto& [state, increment] : captured_generator_states_) {
      state->capturing_ = false;
    }
    if (capture_ended_ || capture_dev_ == UNDEFINED_DEVICE) {
      return;
    }
    attempt([this] {
      c10::cuda::CUDACachingAllocator::get()->endAllocateToPool(capture_dev_, mempool_id_);
    });
    attempt(
        [this] { c10::cuda::CUDACachingAllocator::get()->releasePool(capture_dev_, mempool_id_); });
    at::HostAllocator* const host = at::getHostAllocator(at::kCUDA);
    attempt([&] { host->end_allocate_to_pool(mempool_id_); });
    attempt([&] { host->release_pool(mempool_id_); });
  }

  // What had not begun cannot be ended.
  template <typename Body>
  static void attempt(Body body) noexcept {
    try {
      body();
    } catch (...) {
    }
  }

  bool is_recording_ = false;
};

template <typename Body>
const char* text_of_errors(Body body) {
  thread_local std::string text;
  try {
    body();
    return nullptr;
  } catch (const std::exception& error) {
    text = error.what();
  } catch (...) {
    text = "an unknown error";
  }
  return text.c_str();
}

const char* begin(void** graph, void* const* generators, int32_t num) {
  if (!is_libtorch_loaded()) {
    return "libtorch's CUDA library is not loaded";
  }
  return text_of_errors([&] {
    auto* const made = new StepGraph;
    *graph = made;
    for (int32_t i = 0; i < num; ++i) {
      made->register_generator_state(
          at::Generator(c10::intrusive_ptr<c10::GeneratorImpl>::reclaim_copy(
              static_cast<c10::GeneratorImpl*>(generators[i]))));
    }
    made->begin();
  });
}

const char* end(void* graph) {
  return text_of_errors([&] { static_cast<StepGraph*>(graph)->end(); });
}

const char* replay(void* graph) {
  return text_of_errors([&] { static_cast<StepGraph*>(graph)->replay(); });
}

void release(void* graph) {
  text_of_errors([&] { delete static_cast<StepGraph*>(graph); });
}

}  // namespace

const LockstepGraphs kGraphs = {
    .begin = begin,
    .end = end,
    .replay = replay,
    .release = release,
};

}  // namespace lockstep::cuda
