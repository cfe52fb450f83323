#pragma once

// Work of a device that is recorded once and then queued again as a whole: a CUDA graph, where
// queueing a step's thousands of operations one by one would take the host longer than the device
// needs for them. A seam: what records and replays is written against these classes, and tested on
// machines without a device by a stand-in that records the operations of the CPU.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

namespace lockstep::device {

// What was recorded. Its memory is its own: operations between two replays do not get it, and what
// it has computed stays there until the next replay.
class Graph {
 public:
  virtual ~Graph() = default;

  // Queues all of it on the current stream. Sources of random numbers begin with these seeds, one
  // for each source.
  virtual void replay(const std::vector<uint64_t>& seeds) = 0;
};

// For the work that is being recorded.
class Recorder {
 public:
  virtual ~Recorder() = default;

  // What is drawn on the device from here on comes from this source of random numbers, as it is
  // when the work is replayed.
  virtual void draw_from(size_t source) = 0;
};

// Threads: one at a time.
class Graphs {
 public:
  virtual ~Graphs() = default;

  // The stream that is to be the current one whenever work is recorded, and for all that touches
  // the same tensors: autograd adds a gradient on the stream on which its parameter was first used,
  // and work of another stream cannot be recorded.
  virtual c10::Stream stream() const = 0;

  // Calls `work`, of which nothing is done now. Its tensors are those that a replay reads and
  // writes, at their addresses of now; what the host does in it is done once, here. Throws whatever
  // prevents a recording, such as the device's refusal to be waited for: nothing has been done
  // then, and operations may be queued one by one as before.
  virtual std::unique_ptr<Graph> record(size_t num_sources,
                                        const std::function<void(Recorder&)>& work) = 0;
};

// Null where there are none, with the reason.
struct MadeGraphs {
  std::unique_ptr<Graphs> graphs;
  std::string problem;
};
MadeGraphs make_graphs(at::Device device);

// While it lives, make_graphs() makes these for the CPU. For tests.
class GraphsOnCpu {
 public:
  using Make = std::function<std::unique_ptr<Graphs>()>;
  explicit GraphsOnCpu(Make make);
  ~GraphsOnCpu();
  GraphsOnCpu(const GraphsOnCpu&) = delete;
  GraphsOnCpu& operator=(const GraphsOnCpu&) = delete;
};

// While it lives, this stream is the current one. It goes on after what the caller's stream has
// queued, and the caller's goes on after what was queued here. Nothing for the CPU, or for none.
class OnStream {
 public:
  explicit OnStream(const std::optional<c10::Stream>& stream);
  ~OnStream();
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  std::optional<c10::Stream> outer_;  // if it is another one
  std::optional<c10::Stream> stream_;
  std::optional<c10::StreamGuard> guard_;
};

}  // namespace lockstep::device
