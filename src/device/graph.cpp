#include "device/graph.h"

#include <mutex>
#include <utility>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "device/cuda_library.h"
#include "device/plugin.h"

namespace lockstep::device {
namespace {

struct StandIn {
  std::mutex mutex;
  GraphsOnCpu::Make make;
};
StandIn& stand_in() {
  static StandIn* const state = new StandIn;  // never deleted: it may be asked after main()
  return *state;
}

// libtorch's text of an error ends with the calls that led there.
void check_graph(const char* error, const char* what) {
  if (error) {
    const std::string text = error;
    throw InternalError("{}: {}", what, text.substr(0, text.find("\nException raised from")));
  }
}

// The generator that operators of the device draw from.
at::Generator default_generator(at::Device device) {
  return at::globalContext().defaultGenerator(device);
}

// Operators draw from the default generator, whatever the source: so it is the default generator's
// state that is exchanged.
class Sources : public Recorder {
 public:
  Sources(at::Device device, size_t num) : default_(default_generator(device)) {
    const auto& hooks = at::detail::getCUDAHooks();
    for (size_t i = 0; i < num; ++i) {
      generators_.push_back(hooks.getNewGenerator(device.index()));
    }
    const std::lock_guard lock(default_.mutex());
    before_ = default_.graphsafe_get_state();
  }
  ~Sources() override {
    try {
      set(before_);
    } catch (const std::exception& error) {
      log::error("device", "the generator keeps the state of a recording: {}", error.what());
    }
  }
  Sources(const Sources&) = delete;
  Sources& operator=(const Sources&) = delete;

  void draw_from(size_t source) override { set(generators_.at(source)); }

  const std::vector<at::Generator>& generators() const { return generators_; }

 private:
  void set(const at::Generator& state) {
    const std::lock_guard lock(default_.mutex());
    default_.graphsafe_set_state(state);
  }

  at::Generator default_;
  at::Generator before_;
  std::vector<at::Generator> generators_;
};

class CudaGraph final : public Graph {
 public:
  CudaGraph(const LockstepGraphs& calls, at::Device device, std::vector<at::Generator> generators)
      : calls_(calls), device_(device), generators_(std::move(generators)) {}
  ~CudaGraph() override {
    const c10::DeviceGuard guard(device_);
    calls_.release(graph_);
  }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  void begin() {
    std::vector<void*> generators;
    for (const at::Generator& generator : generators_) {
      generators.push_back(generator.unsafeGetGeneratorImpl());
    }
    check_graph(calls_.begin(&graph_, generators.data(), static_cast<int32_t>(generators.size())),
                "the recording of a CUDA graph did not begin");
  }
  void end() { check_graph(calls_.end(graph_), "the recording of a CUDA graph did not end well"); }

  void replay(const std::vector<uint64_t>& seeds) override {
    LOCKSTEP_CHECK(seeds.size() == generators_.size(), "{} seeds for {} sources", seeds.size(),
                   generators_.size());
    for (size_t i = 0; i < seeds.size(); ++i) {
      const std::lock_guard lock(generators_[i].mutex());
      generators_[i].set_current_seed(seeds[i]);
    }
    check_graph(calls_.replay(graph_), "a CUDA graph was not replayed");
  }

 private:
  const LockstepGraphs& calls_;
  at::Device device_;
  std::vector<at::Generator> generators_;
  void* graph_ = nullptr;
};

class CudaGraphs final : public Graphs {
 public:
  CudaGraphs(const LockstepGraphs& calls, at::Device device)
      : calls_(calls),
        device_(device),
        stream_(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)) {}

  c10::Stream stream() const override { return stream_; }

  std::unique_ptr<Graph> record(size_t num_sources,
                                const std::function<void(Recorder&)>& work) override {
    const c10::DeviceGuard guard(device_);
    // What the same work has needed before is there twice otherwise: cached, and in the graph.
    c10::getDeviceAllocator(device_.type())->emptyCache();
    Sources sources(device_, num_sources);
    auto graph = std::make_unique<CudaGraph>(calls_, device_, sources.generators());
    sources.draw_from(0);  // libtorch registers the state that the default generator has now
    graph->begin();
    work(sources);
    graph->end();
    return graph;
  }

 private:
  const LockstepGraphs& calls_;
  at::Device device_;
  c10::Stream stream_;
};

}  // namespace

MadeGraphs make_graphs(at::Device device) {
  if (device.is_cpu()) {
    const std::lock_guard lock(stand_in().mutex);
    if (stand_in().make) {
      return {.graphs = stand_in().make(), .problem = ""};
    }
    return {.graphs = nullptr, .problem = "the CPU has no graphs"};
  }
  const LockstepCudaPlugin* const cuda = plugin();
  if (!cuda) {
    return {.graphs = nullptr,
            .problem = fmt::format("graphs need lockstep's CUDA plug-in: {}", plugin_state())};
  }
  return {.graphs = std::make_unique<CudaGraphs>(*cuda->graphs, device), .problem = ""};
}

GraphsOnCpu::GraphsOnCpu(Make make) {
  const std::lock_guard lock(stand_in().mutex);
  stand_in().make = std::move(make);
}
GraphsOnCpu::~GraphsOnCpu() {
  const std::lock_guard lock(stand_in().mutex);
  stand_in().make = nullptr;
}

namespace {

void let_wait(const c10::Stream& then, const c10::Stream& first) {
  const c10::DeviceGuard guard(first.device());
  c10::Event event(first.device_type());
  event.record(first);
  event.block(then);
}

}  // namespace

OnStream::OnStream(const std::optional<c10::Stream>& stream) {
  if (!stream || stream->device().is_cpu()) {
    return;
  }
  const c10::Stream current =
      c10::impl::VirtualGuardImpl(stream->device_type()).getStream(stream->device());
  if (current == *stream) {
    return;
  }
  outer_ = current;
  stream_ = stream;
  let_wait(*stream, current);
  guard_.emplace(*stream);
}

OnStream::~OnStream() {
  if (!outer_) {
    return;
  }
  guard_.reset();
  try {
    let_wait(*outer_, *stream_);
  } catch (const std::exception& error) {
    log::error("device", "the caller's stream does not wait for the step's: {}", error.what());
  }
}

}  // namespace lockstep::device
