// Collectives by libtorch's ProcessGroupGloo. Two of its habits shape this file:
// - It cannot be cancelled: an operation that was given up may still read and write its tensors. So
//   it works on staging tensors that the operation owns (or was given: Call::owns_tensors); the
//   caller's tensor is written by the thread that waits, and only after success. A group that
//   failed is parked until its last operation has ended: its destructor would wait for that.
// - It notices a dead peer late or not at all, and cannot say which: Membership does. Its writes to
//   a dead one raise SIGPIPE: the threads that write block it.
// Debian's Gloo headers are older than the code inside libtorch: only this file and raw_gloo.cpp
// include them, and neither constructs or derives a gloo:: type.

#include "comm/backends/gloo_backend.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <thread>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "comm/backends/local_team.h"
#include "comm/backends/sigpipe_block.h"
#include "comm/c10d/c10d_store.h"
#include "comm/membership.h"
#include "comm/work/pending_work.h"

namespace lockstep::comm {
namespace {

using namespace std::chrono_literals;
using GlooGroup = c10::intrusive_ptr<c10d::ProcessGroupGloo>;

constexpr auto kGlooSlack = 5s;  // Gloo's own limit comes after ours, so that ours decides

// Groups that failed. Most end soon: the connection to a dead rank is reset, and as each rank that
// notices destroys its group, the next ones' connections end too. What waits for a stopped rank
// ends at Gloo's own time-out.
class ParkingLot {
 public:
  // Never destroyed: what is in here must not be (and stays reachable, for leak checkers).
  static ParkingLot& instance() {
    static auto* lot = new ParkingLot;
    return *lot;
  }

  void park(GlooGroup group, std::shared_ptr<Membership> membership,
            std::shared_ptr<int> num_pending) {
    const std::lock_guard lock(mutex_);
    parked_.push_back({std::move(group), std::move(membership), std::move(num_pending)});
  }

  // Destroys those whose operations have all ended.
  void sweep() {
    std::vector<Parked> ended;
    {
      const std::lock_guard lock(mutex_);
      const auto first = std::partition(parked_.begin(), parked_.end(),
                                        [](const Parked& group) { return !group.has_ended(); });
      std::move(first, parked_.end(), std::back_inserter(ended));
      parked_.erase(first, parked_.end());
    }
    const SigpipeBlock block;
    ended.clear();
  }

 private:
  struct Parked {
    GlooGroup group;
    std::shared_ptr<Membership> membership;
    std::shared_ptr<int> num_pending;  // guarded by membership

    bool has_ended() const {
      return membership->read([this] { return *num_pending == 0; });
    }
  };

  std::mutex mutex_;
  std::vector<Parked> parked_;
};

c10d::ReduceOp to_c10d(ReduceOp op, at::ScalarType type) {
  const bool is_bool =
      type == at::kBool;  // staged as bytes of 0 and 1, where min is "and", max is "or"
  switch (op) {
    case ReduceOp::Sum:
    case ReduceOp::Average:
      return c10d::ReduceOp::SUM;  // divided when fetched
    case ReduceOp::Min:
      return c10d::ReduceOp::MIN;
    case ReduceOp::Max:
      return c10d::ReduceOp::MAX;
    case ReduceOp::Product:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::BitAnd:
      return is_bool ? c10d::ReduceOp::MIN : c10d::ReduceOp::BAND;
    case ReduceOp::BitOr:
      return is_bool ? c10d::ReduceOp::MAX : c10d::ReduceOp::BOR;
  }
  throw InternalError("a reduction of unknown kind");
}

// Gloo computes in this type: sums of 16 bits in float32, rounded once at the end, as everywhere.
at::ScalarType staging_type(ReduceOp op, at::ScalarType type) {
  if (type == at::kBool) {
    return at::kByte;
  }
  return shm::accumulator_of(to_shm(type), to_shm(op)) == to_shm(type) ? type : at::kFloat;
}

// A flat copy. `type` is the tensor's own where Gloo computes, bytes where it only moves.
at::Tensor stage(const at::Tensor& tensor, at::ScalarType type) {
  at::Tensor staging =
      at::empty({static_cast<int64_t>(tensor.nbytes() / c10::elementSize(type))}, type);
  if (tensor.nbytes() > 0) {
    std::memcpy(staging.mutable_data_ptr(), tensor.const_data_ptr(), tensor.nbytes());
  }
  return staging;
}

at::Tensor stage_empty(const at::Tensor& tensor) {
  return at::empty({static_cast<int64_t>(tensor.nbytes())}, at::kByte);
}

std::vector<int64_t> in_bytes(std::vector<int64_t> elements, const at::Tensor& tensor) {
  for (int64_t& count : elements) {
    count *= static_cast<int64_t>(tensor.element_size());
  }
  return elements;
}

// One operation in Gloo's hands.
class GlooWork : public PendingWork {
 public:
  GlooWork(Call call, std::shared_ptr<Membership> membership, GlooOptions::Place place,
           std::shared_ptr<int> num_pending)
      : PendingWork(std::move(call), std::move(membership), std::move(num_pending)),
        place_(place) {}

  // Hands the call to Gloo.
  void launch(c10d::ProcessGroupGloo& gloo) {
    begin();
    const SigpipeBlock block;  // messages are written by this thread
    c10::intrusive_ptr<c10d::Work> work;
    try {
      work = start(gloo);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      finish(error.what());  // a message to a rank whose connection is gone fails at once
      return;
    }
    if (call_.is_message()) {
      // Messages have no future to hang a callback on; their wait may block, so a thread does it.
      std::thread([self = shared_from_this(), this, work] { wait_for_message(*work); }).detach();
      return;
    }
    work->getFuture()->addCallback([self = shared_from_this(), this](c10::ivalue::Future& future) {
      finish(future.hasError() ? future.tryRetrieveErrorMessage() : "");
    });
  }

  bool wait(base::Deadline limit) override {
    const auto [is_finished, error] = await_report(limit);
    if (!error.empty()) {
      membership_->transport_failed(call_, error);
    }
    if (is_finished) {
      fetch();
      return true;
    }
    if (const auto failure = membership_->failure()) {
      failure->raise(call_.text());
    }
    if (call_.deadline.expired()) {
      membership_->time_out(call_);
    }
    return false;
  }

 private:
  std::chrono::milliseconds gloo_timeout() const {
    const auto left = call_.deadline.remaining();
    return left > 24h ? 24h : std::chrono::ceil<std::chrono::milliseconds>(left + kGlooSlack);
  }

  c10::intrusive_ptr<c10d::Work> start(c10d::ProcessGroupGloo& gloo) {
    switch (call_.operation) {
      case Operation::AllReduce:
      case Operation::ReduceScatter: {  // Gloo's reduce-scatter is an all-reduce too
        const at::ScalarType type = call_.input.scalar_type();
        const at::ScalarType wide = staging_type(call_.reduce, type);
        staging_ = wide == at::kFloat
                       ? call_.input.detach().flatten().to(wide, false, /*copy=*/true)
                       : stage(call_.input, wide);
        c10d::AllreduceOptions options;
        options.reduceOp = to_c10d(call_.reduce, type);
        options.timeout = gloo_timeout();
        std::vector<at::Tensor> tensors = {staging_};
        return gloo.allreduce(tensors, options);
      }
      case Operation::Broadcast: {
        staging_ = stage(call_.input, at::kByte);
        c10d::BroadcastOptions options;
        options.rootRank = call_.peer;
        options.timeout = gloo_timeout();
        std::vector<at::Tensor> tensors = {staging_};
        return gloo.broadcast(tensors, options);
      }
      case Operation::AllGather: {
        source_ = call_.owns_tensors ? call_.input : stage(call_.input, at::kByte);
        staging_ = call_.owns_tensors ? call_.output : stage_empty(call_.output);
        c10d::AllgatherOptions options;
        options.timeout = gloo_timeout();
        return gloo._allgather_base(staging_, source_, options);
      }
      case Operation::AllToAll:
        return start_all_to_all(gloo);
      case Operation::Send: {
        source_ = stage(call_.input, at::kByte);
        std::vector<at::Tensor> tensors = {source_};
        return gloo.send(tensors, call_.peer, call_.tag);
      }
      case Operation::Recv: {
        staging_ = stage_empty(call_.output);
        std::vector<at::Tensor> tensors = {staging_};
        return gloo.recv(tensors, call_.peer, call_.tag);
      }
      case Operation::Allocate:  // never comes here
      case Operation::Connect:
      case Operation::Barrier: {
        c10d::BarrierOptions options;
        options.timeout = gloo_timeout();
        return gloo.barrier(options);
      }
    }
    throw InternalError("an operation of unknown kind");
  }

  c10::intrusive_ptr<c10d::Work> start_all_to_all(c10d::ProcessGroupGloo& gloo) {
    source_ = call_.owns_tensors ? call_.input : stage(call_.input, at::kByte);
    staging_ = call_.owns_tensors ? call_.output : stage_empty(call_.output);
    auto input_bytes = in_bytes(call_.input_splits, call_.input);
    auto output_bytes = in_bytes(call_.output_splits, call_.output);
    c10d::AllToAllOptions options;
    options.timeout = gloo_timeout();
    return gloo.alltoall_base(staging_, source_, output_bytes, input_bytes, options);
  }

  void wait_for_message(c10d::Work& work) {
    try {
      work.wait(gloo_timeout());
      finish("");
    } catch (const std::exception& error) {
      finish(error.what());
    }
  }

  // Copies the result out, once; by the waiting thread, so that an abandoned operation never
  // writes.
  void fetch() {
    const std::lock_guard lock(fetch_mutex_);
    const bool is_there =
        call_.owns_tensors || !call_.output.defined() || call_.output.nbytes() == 0;
    if (fetched_ || is_there) {
      return;
    }
    fetched_ = true;
    if (call_.reduces()) {
      fetch_reduction();
    } else {
      std::memcpy(call_.output.mutable_data_ptr(), staging_.const_data_ptr(),
                  call_.output.nbytes());
    }
  }

  void fetch_reduction() const {
    const int64_t count = call_.output.numel();
    const bool is_part = call_.operation == Operation::ReduceScatter;
    at::Tensor result = staging_.narrow(0, is_part ? place_.rank * count : 0, count);
    if (call_.reduce == ReduceOp::Average) {
      result.div_(place_.size);
    }
    at::Tensor output = call_.output.detach();
    if (result.scalar_type() == at::kFloat && output.scalar_type() != at::kFloat) {
      output.copy_(result.view_as(output));  // rounds
    } else {
      std::memcpy(output.mutable_data_ptr(), result.const_data_ptr(), output.nbytes());
    }
  }

  const GlooOptions::Place place_;
  at::Tensor source_;
  at::Tensor staging_;
  std::mutex fetch_mutex_;
  bool fetched_ = false;
};

class GlooBackend : public Backend {
 public:
  explicit GlooBackend(GlooOptions options)
      : options_(std::move(options)), membership_(options_.membership) {
    ParkingLot::instance().sweep();
    connect();
  }

  ~GlooBackend() override {
    // Operations that were not waited for must end before Gloo may be destroyed.
    if (!membership_->wait(base::Deadline::after(kPendingTime),
                           [this] { return *num_pending_ == 0; })) {
      abandon(kDestroyedInFlight);
    }
    if (!options_.place.is_part) {
      membership_
          ->leave();  // before the connections close, which the others would take for a death
    }
    if (membership_->failure()) {
      ParkingLot::instance().park(std::move(gloo_), membership_, num_pending_);
      ParkingLot::instance().sweep();
    }
  }

  int rank() const override { return options_.place.rank; }
  int size() const override { return options_.place.size; }
  std::string name() const override { return "gloo"; }
  std::chrono::milliseconds timeout() const override { return options_.timeout; }
  std::optional<Store> store() const override { return membership_->store(); }
  GroupOptions options() const override { return options_.group; }

  void abandon(const std::string& why) override {
    if (!membership_->failure()) {
      membership_->abandon(why);
    }
  }

  void check(const Call& call) const override { membership_->check(call); }

  std::shared_ptr<WorkState> start(Call call) override {
    if (!options_.place.is_part) {
      membership_->started(call);
      membership_->check_same_call(call);
    }
    const bool is_empty = call.operation != Operation::Barrier &&
                          call.operation != Operation::AllToAll &&
                          (call.input.defined() ? call.input : call.output).numel() == 0;
    if (is_empty) {
      return nullptr;  // nothing to move: no rank waits for another
    }
    auto work =
        std::make_shared<GlooWork>(std::move(call), membership_, options_.place, num_pending_);
    work->launch(*gloo_);
    return work;
  }

 private:
  // The constructor of ProcessGroupGloo blocks until every rank has come. It runs on a thread of
  // its own, so that a rank's death meanwhile is an error here and not a wait for the time-out.
  void connect() {
    struct Attempt {
      GlooGroup group;
      std::string error;
      bool finished = false;
    };
    const Call& call = options_.connect;
    auto attempt = std::make_shared<Attempt>();
    std::thread([attempt, membership = membership_, options = options_] {
      const SigpipeBlock block;  // Gloo's threads are started here
      GlooGroup group;
      std::string error;
      try {
        group = make_gloo(*membership, options);
      } catch (const std::exception& caught) {
        error = caught.what();
      }
      membership->update([&] {
        attempt->group = group;
        attempt->error = error;
        attempt->finished = true;
      });
    }).detach();
    membership_->wait(call.deadline, [&] { return attempt->finished; });
    const auto [is_finished, error] =
        membership_->read([&] { return std::pair(attempt->finished, attempt->error); });
    if (!error.empty()) {
      membership_->transport_failed(call, error);
    }
    if (is_finished) {
      gloo_ = attempt->group;
      return;
    }
    if (const auto failure = membership_->failure()) {
      failure->raise(call.text());
    }
    membership_->time_out(call);
  }

  static GlooGroup make_gloo(const Membership& membership, const GlooOptions& options) {
    const auto timeout = options.connect.timeout;
    auto store = c10::make_intrusive<C10dStore>(membership.store().client(),
                                                membership.key(options.prefix), timeout);
    auto gloo = c10d::ProcessGroupGloo::Options::create(timeout);
    gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(options.address));
    gloo->threads = 2;
    return c10::make_intrusive<c10d::ProcessGroupGloo>(std::move(store), options.place.rank,
                                                       options.place.size, std::move(gloo));
  }

  const GlooOptions options_;
  const std::shared_ptr<Membership> membership_;
  GlooGroup gloo_;
  std::shared_ptr<int> num_pending_ = std::make_shared<int>(0);
};

}  // namespace

std::shared_ptr<Backend> make_gloo_backend(GlooOptions options) {
  return std::make_shared<GlooBackend>(std::move(options));
}

}  // namespace lockstep::comm
