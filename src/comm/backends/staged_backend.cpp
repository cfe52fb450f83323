#include "comm/backends/staged_backend.h"

#include <algorithm>
#include <array>
#include <map>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "comm/backends/staged_message.h"
#include "comm/work/staging.h"
#include "comm/work/work_queue.h"

namespace lockstep::comm {
namespace {

constexpr int64_t kNumSlots = 3;  // one copied in, one exchanged, one copied out

// A call of the queue, waited for by the host and then by the waiter's stream.
class StagedWork : public WorkState {
 public:
  StagedWork(std::shared_ptr<WorkState> queued, std::shared_ptr<Staging> staging)
      : queued_(std::move(queued)), staging_(std::move(staging)) {}

  bool wait(base::Deadline limit) override {
    if (!queued_->wait(limit)) {
      return false;
    }
    staging_->copies->current_waits(staging_->after);
    return true;
  }
  bool done() const override { return queued_->done(); }
  void on_done(std::function<void(std::exception_ptr)> callback) override {
    queued_->on_done(std::move(callback));
  }

 private:
  const std::shared_ptr<WorkState> queued_;
  const std::shared_ptr<Staging> staging_;
};

class StagedBackend : public Backend {
 public:
  explicit StagedBackend(StagedOptions options)
      : options_(std::move(options)), carrier_(*options_.carrier) {}

  ~StagedBackend() override {
    if (is_used_ && !queue_.drain(base::Deadline::after(kPendingTime))) {
      carrier_.abandon(kDestroyedInFlight);
    }
    queue_.stop();
  }

  int rank() const override { return carrier_.rank(); }
  int size() const override { return carrier_.size(); }
  std::string name() const override { return carrier_.name(); }
  std::chrono::milliseconds timeout() const override { return carrier_.timeout(); }
  std::optional<Store> store() const override { return carrier_.store(); }
  std::vector<int> local_ranks() const override { return carrier_.local_ranks(); }
  std::vector<at::Tensor> local_views(const at::Tensor& memory) const override {
    return carrier_.local_views(memory);
  }
  Traffic traffic() const override { return carrier_.traffic(); }
  GroupOptions options() const override { return carrier_.options(); }
  void abandon(const std::string& why) override { carrier_.abandon(why); }
  void check(const Call& call) const override { carrier_.check(call); }

  std::shared_ptr<WorkState> start(Call call) override {
    if (!is_staged(call)) {
      const bool is_free = call.is_message() || !is_used_ || queue_.is_idle();
      return is_free ? carrier_.start(std::move(call)) : queue_.push(std::move(call));
    }
    prepare(call);
    if (call.is_message()) {
      return start_message(carrier_, std::move(call));
    }
    auto staging = call.staging;
    return std::make_shared<StagedWork>(queue_.push(std::move(call)), std::move(staging));
  }

  void run(Call call) override {
    if (!is_staged(call)) {
      if (call.is_message() || !is_used_ || queue_.is_idle()) {
        carrier_.run(std::move(call));
      } else {
        queue_.run(call);
      }
      return;
    }
    if (call.is_message()) {
      Backend::run(std::move(call));
      return;
    }
    prepare(call);
    queue_.run(call);
    call.staging->copies->current_waits(call.staging->after);
  }

  at::Tensor allocate(int64_t bytes, const Call& call) override {
    await_queue(call);
    return carrier_.allocate(bytes, call);
  }
  void rebind(const at::Tensor& tensor, const Call& call) override {
    await_queue(call);
    carrier_.rebind(tensor, call);
  }

 private:
  // A third of the staging memory, and what was last copied out of it.
  struct Slot {
    at::Tensor memory;
    device::MomentPtr is_free;
    device::MomentPtr is_loaded;
  };

  bool is_staged(const Call& call) const {
    const at::Tensor& tensor = call.input.defined() ? call.input : call.output;
    return tensor.defined() && options_.is_staged(tensor);
  }

  // On the thread that starts the call.
  void prepare(Call& call) {
    carrier_.check(call);
    is_used_ = true;
    abandon_on_error(carrier_, call, [&] {
      const at::Device device = (call.input.defined() ? call.input : call.output).device();
      std::shared_ptr<device::Copies>& copies = copies_[device.index()];
      if (!copies) {
        copies = options_.make_copies(device);
      }
      call.staging = std::make_shared<Staging>(Staging{.copies = copies, .before = copies->now()});
    });
  }

  void await_queue(const Call& call) {
    if (is_used_ && !queue_.drain(call.deadline)) {
      carrier_.abandon("operations before " + call.text() + " are still in flight");
      throw TimeoutError("{}: operations before it are still in flight after {}", call.text(),
                         base::to_text(call.timeout));
    }
  }

  // The queue's: one call after the other.
  void execute(const Call& call) {
    if (!call.staging) {
      carrier_.run(call);
      return;
    }
    carrier_.check(call);
    abandon_on_error(carrier_, call, [&] { stage(call); });
  }

  void stage(const Call& call) {
    device::Copies& copies = *call.staging->copies;
    copies.after(device::Lane::ToHost, call.staging->before);
    copies.after(device::Lane::ToDevice, call.staging->before);
    switch (call.operation) {
      case Operation::AllReduce:
        all_reduce(call);
        break;
      case Operation::Broadcast:
        broadcast(call);
        break;
      case Operation::AllGather:
        all_gather(call);
        break;
      case Operation::ReduceScatter:
        reduce_scatter(call);
        break;
      case Operation::AllToAll:
        all_to_all(call);
        break;
      default:
        throw InternalError("no tensor of a GPU can be in {}", call.text());
    }
    call.staging->after = copies.reached(device::Lane::ToDevice);
  }

  // Memory that the ranks of a host reduce where it lies. Every rank comes here with its first
  // collective of this kind, and announces that one: a peer whose tensor is not on a device does
  // not come, and is told of this rank's call and not of memory that no user has asked for.
  std::array<Slot, kNumSlots>& slots(const Call& call) {
    if (!slots_[0].memory.defined()) {
      const int64_t bytes = kNumSlots * options_.piece_bytes;
      const at::Tensor memory = carrier_.allocate(bytes, part(call, Operation::Allocate));
      call.staging->copies->make_fast(memory);
      for (int64_t slot = 0; slot < kNumSlots; ++slot) {
        slots_[static_cast<size_t>(slot)].memory =
            memory.narrow(0, slot * options_.piece_bytes, options_.piece_bytes);
      }
    }
    return slots_;
  }

  // A step of the user's call, and named as that in errors.
  static Call part(const Call& call, Operation operation) {
    Call step{.operation = operation, .reduce = call.reduce, .peer = call.peer};
    step.sequence = call.sequence;
    step.deadline = call.deadline;
    step.timeout = call.timeout;
    step.part_of = call.label();
    return step;
  }

  void wait_on_host(const device::MomentPtr& moment, const Call& call) {
    const auto look = [&] { carrier_.check(call); };
    if (!device::wait_for(*call.staging->copies, moment, call.deadline, look)) {
      carrier_.abandon("its GPU has not finished what comes before " + call.text());
      throw TimeoutError(
          "{}: the GPU of rank {} has not finished what comes before it after {}; is it doing more "
          "than the time-out allows?",
          call.text(), rank(), base::to_text(call.timeout));
    }
  }

  // What one operation does with its pieces. `first` and `count` are elements of the smaller of its
  // tensors; `memory` holds `parts` times as many, of the call's type.
  struct Pieces {
    int64_t total = 0;
    int64_t parts = 1;
    std::function<void(const at::Tensor& memory, int64_t first, int64_t count)> load;
    std::function<void(const at::Tensor& memory)> exchange;
    std::function<void(const at::Tensor& memory, int64_t first, int64_t count)> store;
  };

  void in_pieces(const Call& call, const Pieces& pieces) {
    auto& ring = slots(call);
    device::Copies& copies = *call.staging->copies;
    const at::ScalarType type = call.input.scalar_type();
    const auto element_bytes = static_cast<int64_t>(c10::elementSize(type));
    const int64_t most = options_.piece_bytes / element_bytes / pieces.parts;
    LOCKSTEP_CHECK(most > 0, "{} ranks share {} bytes", pieces.parts, options_.piece_bytes);
    // An empty tensor has one empty piece, so that ranks which disagree about it find out.
    const int64_t num_pieces = std::max<int64_t>(1, (pieces.total + most - 1) / most);
    const auto slot_of = [&](int64_t piece) -> Slot& {
      return ring[static_cast<size_t>(piece % kNumSlots)];
    };
    const auto count_of = [&](int64_t piece) {
      return std::min(most, pieces.total - piece * most);
    };
    const auto memory_of = [&](int64_t piece) {
      const int64_t bytes = count_of(piece) * pieces.parts * element_bytes;
      return slot_of(piece).memory.narrow(0, 0, bytes).view(type);
    };
    const auto load = [&](int64_t piece) {
      Slot& slot = slot_of(piece);
      copies.after(device::Lane::ToHost, slot.is_free);
      pieces.load(memory_of(piece), piece * most, count_of(piece));
      slot.is_loaded = copies.reached(device::Lane::ToHost);
    };
    for (int64_t piece = 0; piece < std::min(num_pieces, kNumSlots); ++piece) {
      load(piece);
    }
    for (int64_t piece = 0; piece < num_pieces; ++piece) {
      Slot& slot = slot_of(piece);
      wait_on_host(slot.is_loaded, call);
      pieces.exchange(memory_of(piece));
      pieces.store(memory_of(piece), piece * most, count_of(piece));
      slot.is_free = copies.reached(device::Lane::ToDevice);
      if (piece + kNumSlots < num_pieces) {
        load(piece + kNumSlots);
      }
    }
  }

  void all_reduce(const Call& call) {
    device::Copies& copies = *call.staging->copies;
    const at::Tensor flat = call.input.view({-1});
    in_pieces(call, {.total = flat.numel(),
                     .load =
                         [&](const at::Tensor& memory, int64_t first, int64_t count) {
                           copies.copy(device::Lane::ToHost, memory, flat.narrow(0, first, count));
                         },
                     .exchange =
                         [&](const at::Tensor& memory) {
                           Call step = part(call, Operation::AllReduce);
                           step.input = step.output = memory;
                           carrier_.run(std::move(step));
                         },
                     .store =
                         [&](const at::Tensor& memory, int64_t first, int64_t count) {
                           copies.copy(device::Lane::ToDevice, flat.narrow(0, first, count),
                                       memory);
                         }});
  }

  void broadcast(const Call& call) {
    device::Copies& copies = *call.staging->copies;
    const at::Tensor flat = call.input.view({-1});
    const bool is_root = call.peer == rank();
    in_pieces(call,
              {.total = flat.numel(),
               .load =
                   [&](const at::Tensor& memory, int64_t first, int64_t count) {
                     if (is_root) {
                       copies.copy(device::Lane::ToHost, memory, flat.narrow(0, first, count));
                     }
                   },
               .exchange =
                   [&](const at::Tensor& memory) {
                     Call step = part(call, Operation::Broadcast);
                     step.input = step.output = memory;
                     carrier_.run(std::move(step));
                   },
               .store =
                   [&](const at::Tensor& memory, int64_t first, int64_t count) {
                     if (!is_root) {
                       copies.copy(device::Lane::ToDevice, flat.narrow(0, first, count), memory);
                     }
                   }});
  }

  void all_gather(const Call& call) {
    device::Copies& copies = *call.staging->copies;
    const at::Tensor input = call.input.view({-1});
    const at::Tensor output = call.output.view({size(), -1});
    const auto own = [&](const at::Tensor& memory) {
      return memory.view({size(), -1}).select(0, rank());
    };
    in_pieces(call, {.total = input.numel(),
                     .parts = size(),
                     .load =
                         [&](const at::Tensor& memory, int64_t first, int64_t count) {
                           copies.copy(device::Lane::ToHost, own(memory),
                                       input.narrow(0, first, count));
                         },
                     .exchange =
                         [&](const at::Tensor& memory) {
                           Call step = part(call, Operation::AllGather);
                           step.input = own(memory);
                           step.output = memory;
                           carrier_.run(std::move(step));
                         },
                     .store =
                         [&](const at::Tensor& memory, int64_t first, int64_t count) {
                           const at::Tensor rows = memory.view({size(), -1});
                           for (int peer = 0; peer < size(); ++peer) {
                             copies.copy(device::Lane::ToDevice,
                                         output.select(0, peer).narrow(0, first, count),
                                         rows.select(0, peer));
                           }
                         }});
  }

  void reduce_scatter(const Call& call) {
    device::Copies& copies = *call.staging->copies;
    const at::Tensor input = call.input.view({size(), -1});
    const at::Tensor output = call.output.view({-1});
    const auto own = [&](const at::Tensor& memory) {
      return memory.view({size(), -1}).select(0, rank());
    };
    in_pieces(call, {.total = output.numel(),
                     .parts = size(),
                     .load =
                         [&](const at::Tensor& memory, int64_t first, int64_t count) {
                           const at::Tensor rows = memory.view({size(), -1});
                           for (int peer = 0; peer < size(); ++peer) {
                             copies.copy(device::Lane::ToHost, rows.select(0, peer),
                                         input.select(0, peer).narrow(0, first, count));
                           }
                         },
                     .exchange =
                         [&](const at::Tensor& memory) {
                           Call step = part(call, Operation::ReduceScatter);
                           step.input = memory;
                           step.output = own(memory);
                           carrier_.run(std::move(step));
                         },
                     .store =
                         [&](const at::Tensor& memory, int64_t first, int64_t count) {
                           copies.copy(device::Lane::ToDevice, output.narrow(0, first, count),
                                       own(memory));
                         }});
  }

  // Ranks send each other different numbers, so that pieces of one size would not meet.
  void all_to_all(const Call& call) {
    device::Copies& copies = *call.staging->copies;
    Call step = part(call, Operation::AllToAll);
    step.input_splits = call.input_splits;
    step.output_splits = call.output_splits;
    step.input = host_copy_of(copies, call.input);
    step.output = host_copy_of(copies, call.output);
    const at::Tensor received = step.output;
    copies.copy(device::Lane::ToHost, step.input, call.input.view({-1}));
    wait_on_host(copies.reached(device::Lane::ToHost), call);
    carrier_.run(std::move(step));
    copies.copy(device::Lane::ToDevice, call.output.view({-1}), received);
  }

  const StagedOptions options_;
  Backend& carrier_;
  std::map<at::DeviceIndex, std::shared_ptr<device::Copies>> copies_;
  bool is_used_ = false;  // on the thread that starts operations
  std::array<Slot, kNumSlots> slots_;
  WorkQueue queue_{[this](const Call& call) { execute(call); }};
};

}  // namespace

std::shared_ptr<Backend> make_staged_backend(StagedOptions options) {
  return std::make_shared<StagedBackend>(std::move(options));
}

}  // namespace lockstep::comm
