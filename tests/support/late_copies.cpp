#include "support/late_copies.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "base/dice.h"

namespace lockstep::testing_support {
namespace {

using namespace std::chrono_literals;

constexpr auto kEndTime = 1s;  // for what a lane has still to do when it ends

class LateMoment : public device::Moment {
 public:
  void pass() {
    const std::lock_guard lock(mutex_);
    has_passed_ = true;
    changed_.notify_all();
  }
  bool has_passed() {
    const std::lock_guard lock(mutex_);
    return has_passed_;
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return has_passed_; });
  }
  // The same, until `is_over`.
  void wait(const std::atomic<bool>& is_over) {
    std::unique_lock lock(mutex_);
    while (!has_passed_ && !is_over) {
      changed_.wait_for(lock, 1ms);
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_passed_ = false;
};

LateMoment& late(const device::MomentPtr& moment) {
  return static_cast<LateMoment&>(*moment);
}

// Jobs in their order, by a thread that is slow at times.
class LateLane {
 public:
  explicit LateLane(uint64_t number) : dice_(/*seed=*/1, number), thread_([this] { serve(); }) {}
  // Finishes what it has to do. What waits for something that does not come is dropped, as a device
  // does not hold up those who end.
  ~LateLane() {
    push(nullptr);
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kEndTime, [this] { return has_ended_; });
    }
    is_over_ = true;
    thread_.join();
  }
  LateLane(const LateLane&) = delete;
  LateLane& operator=(const LateLane&) = delete;

  void push(std::function<void()> job) {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    changed_.notify_all();
  }

  void wait_for(const device::MomentPtr& moment) {
    if (moment) {
      push([this, moment] { late(moment).wait(is_over_); });
    }
  }
  void copy(const at::Tensor& to, const at::Tensor& from) {
    push([this, to, from] {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      for (size_t turns = dice_.below(200); turns > 0; --turns) {
        std::this_thread::yield();
      }
      if (!is_over_) {
        to.copy_(from);
      }
    });
  }
  device::MomentPtr reached() {
    auto moment = std::make_shared<LateMoment>();
    push([moment] { moment->pass(); });
    return moment;
  }

 private:
  void serve() {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !jobs_.empty(); });
      const std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      if (!job) {
        lock.lock();
        has_ended_ = true;
        changed_.notify_all();
        return;
      }
      job();
    }
  }

  base::Dice dice_;
  std::mutex mutex_;  // guards jobs_ and has_ended_
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool has_ended_ = false;
  std::atomic<bool> is_over_{false};
  std::thread thread_;
};

// Of all threads; null until something is queued there. Never destroyed.
std::atomic<LateLane*> current_stream{nullptr};

class LateCopies : public device::Copies {
 public:
  explicit LateCopies(LateHooks hooks) : hooks_(std::move(hooks)) {}

  // What a test does on the host is done when it returns; only what it queues comes late.
  device::MomentPtr now() override {
    LateLane* const stream = current_stream;
    return stream ? stream->reached() : nullptr;
  }
  void current_waits(const device::MomentPtr& moment) override {
    if (moment) {
      late(moment).wait();
    }
  }

  void after(device::Lane lane, const device::MomentPtr& moment) override {
    lane_of(lane).wait_for(moment);
  }
  void copy(device::Lane lane, const at::Tensor& to, const at::Tensor& from) override {
    hooks_.call(hooks_.before_copy);
    lane_of(lane).copy(to, from);
  }
  device::MomentPtr reached(device::Lane lane) override { return lane_of(lane).reached(); }
  at::Tensor memory_of_lane(at::IntArrayRef sizes, at::ScalarType type) override {
    return at::full(sizes, -77, at::TensorOptions(type));
  }
  void current_uses(const at::Tensor& /*memory*/) override {}
  device::MomentPtr copy_apart(const at::Tensor& to, const at::Tensor& from,
                               const device::MomentPtr& moment) override {
    hooks_.call(hooks_.before_copy);
    const std::lock_guard lock(apart_mutex_);
    apart_.wait_for(moment);
    apart_.copy(to, from);
    return apart_.reached();
  }

  bool has_passed(const device::MomentPtr& moment) override {
    return !moment || late(moment).has_passed();
  }
  at::Tensor host_memory(int64_t bytes) override {
    hooks_.call(hooks_.before_host_memory);
    return at::empty({bytes}, at::kByte);
  }
  void make_fast(const at::Tensor& /*memory*/) override {}

 private:
  LateLane& lane_of(device::Lane lane) {
    return lane == device::Lane::ToHost ? to_host_ : to_device_;
  }

  const LateHooks hooks_;
  LateLane to_host_{1};
  LateLane to_device_{2};
  std::mutex apart_mutex_;  // its three jobs follow each other
  LateLane apart_{3};
};

}  // namespace

std::unique_ptr<device::Copies> make_late_copies(at::Device /*device*/) {
  return make_hooked_copies({});
}

std::unique_ptr<device::Copies> make_hooked_copies(LateHooks hooks) {
  return std::make_unique<LateCopies>(std::move(hooks));
}

void queue_late(std::function<void()> work) {
  static LateLane* const stream = new LateLane(4);
  current_stream = stream;
  stream->push(std::move(work));
}

void finish_late() {
  if (LateLane* const stream = current_stream) {
    late(stream->reached()).wait();
  }
}

}  // namespace lockstep::testing_support
