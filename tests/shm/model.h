#pragma once

// A model of the platform under the protocol, and a search through every order of its steps.
//
// Ranks are fibers. Every operation on a model Atomic is one step, taken when the search says so;
// sleeping and waking are steps too. The search runs the program from the start for each order
// (nothing is stored but choices), depth first. A prefix that leads to a state that was seen before
// is not followed: a state is all shared values, and of each fiber all that it has observed, by
// which the rest of its run is determined (as a 64-bit hash). So a search without a bound covers
// every order of steps, of which equivalent ones count once.
//
// Memory is sequentially consistent, as the protocol's atomics are. What is weaker is found by
// clocks: a Plain variable complains of two accesses that no atomic orders (relaxed ones order
// nothing).

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/deadline.h"
#include "shm/fiber.h"

namespace lockstep::shm::test {

inline constexpr int kMaxFibers = 5;

// How much of each fiber's past is known, to a fiber or through a variable.
struct VectorClock {
  uint32_t ticks[kMaxFibers] = {};
  void join(const VectorClock& other);
  bool includes(const VectorClock& other) const;
};

class Plain;

// One run of the program under one order of steps.
class Scheduler {
 public:
  struct Cell {  // of an Atomic
    uint64_t value = 0;
    VectorClock clock;
  };

  // Who takes the next step: `last`, who took the one before (-1: nobody yet), or another; -1: the
  // run ends here.
  using Choose = std::function<int(int last)>;

  explicit Scheduler(std::vector<std::unique_ptr<Fiber>>& fibers) : fibers_(fibers) {}

  void run(const std::vector<std::function<void()>>& bodies, const Choose& choose);
  bool can_run(int fiber) const { return state(fiber) == State::Ready; }
  bool all_ended() const;
  uint64_t state_hash() const;
  std::string describe() const;

  // From inside a fiber.
  int current() const { return current_; }
  void step();  // gives the choice of who goes on to the search
  void observe(uint64_t value);
  // What this fiber does from here on depends on `label` alone, not on what it saw before.
  void forget(uint64_t label) { histories_[current_] = label; }
  void sleep_on(const void* word);
  void wake(const void* word);
  VectorClock& clock() { return clocks_[current_]; }
  void tick() { ++clocks_[current_].ticks[current_]; }
  void fail(const std::string& what);

  // Of the whole run.
  void add_cell(const Cell* cell) { cells_.push_back(cell); }
  void add_plain(const Plain* plain) { plains_.push_back(plain); }
  const std::string& failure() const { return failure_; }

  static Scheduler& now();  // the one that runs

 private:
  enum class State { Ready, Asleep, Ended };
  State state(int fiber) const;
  void start(const std::vector<std::function<void()>>& bodies);
  void resume(int fiber);
  void leave_to_next();

  const Choose* choose_ = nullptr;  // null while fibers run up to their first steps
  int next_ = -1;
  std::vector<std::unique_ptr<Fiber>>& fibers_;
  size_t num_fibers_ = 0;
  std::vector<const Cell*> cells_;
  std::vector<const Plain*> plains_;
  VectorClock clocks_[kMaxFibers];
  uint64_t histories_[kMaxFibers] = {};
  const void* sleeps_on_[kMaxFibers] = {};
  int current_ = -1;
  std::string failure_;
};

// What the search runs. A fresh one for every order of steps.
class Program {
 public:
  virtual ~Program() = default;
  virtual std::vector<std::function<void()>> bodies() = 0;
  // After all have ended: empty, or what is wrong.
  virtual std::string verdict() const = 0;
};

struct SearchOptions {
  std::function<std::unique_ptr<Program>()> make;  // REQUIRED
  // How often a fiber that could go on may be made to wait; -1: without limit, every order.
  int max_preemptions = -1;
};
struct SearchResult {
  uint64_t num_runs = 0;
  uint64_t num_states = 0;
  uint64_t num_steps = 0;
  std::string failure;  // of the first bad order; empty: there is none
  std::string text() const;
};
SearchResult search(const SearchOptions& options);

// ---- the platform ----

inline bool is_acquire(std::memory_order order) {
  return order == std::memory_order_seq_cst || order == std::memory_order_acquire ||
         order == std::memory_order_acq_rel;
}
inline bool is_release(std::memory_order order) {
  return order == std::memory_order_seq_cst || order == std::memory_order_release ||
         order == std::memory_order_acq_rel;
}

template <typename T>
class ModelAtomic {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): as std::atomic's
  ModelAtomic(T value) {
    cell_.value = static_cast<uint64_t>(value);
    Scheduler::now().add_cell(&cell_);
  }
  ModelAtomic(const ModelAtomic&) = delete;
  ModelAtomic& operator=(const ModelAtomic&) = delete;

  T load(std::memory_order order = std::memory_order_seq_cst) const {
    Scheduler& scheduler = begin();
    if (is_acquire(order)) {
      scheduler.clock().join(cell_.clock);
    }
    scheduler.observe(cell_.value);
    return static_cast<T>(cell_.value);
  }
  void store(T value, std::memory_order order = std::memory_order_seq_cst) {
    Scheduler& scheduler = begin();
    cell_.clock = is_release(order) ? scheduler.clock() : VectorClock{};
    cell_.value = static_cast<uint64_t>(value);
    scheduler.tick();
  }
  T fetch_add(T value, std::memory_order order = std::memory_order_seq_cst) {
    return change(static_cast<uint64_t>(value), order);
  }
  T fetch_sub(T value, std::memory_order order = std::memory_order_seq_cst) {
    return change(-static_cast<uint64_t>(value), order);
  }

  T peek() const { return static_cast<T>(cell_.value); }  // for sleep(): part of its step
  // Called before every access: the test's own rule about it.
  std::function<void()> on_access;
  // Nobody else writes it in this program: an access is no step, for its place in the order is of
  // no matter.
  bool is_quiet = false;

 private:
  Scheduler& begin() const {
    if (!is_quiet) {
      Scheduler::now().step();
    }
    if (on_access) {
      on_access();
    }
    return Scheduler::now();
  }
  T change(uint64_t difference, std::memory_order order) {
    Scheduler& scheduler = begin();
    const auto old = static_cast<T>(cell_.value);
    if (is_acquire(order)) {
      scheduler.clock().join(cell_.clock);
    }
    if (is_release(order)) {
      cell_.clock.join(scheduler.clock());
    }
    cell_.value = static_cast<uint64_t>(static_cast<T>(cell_.value + difference));
    scheduler.observe(static_cast<uint64_t>(old));
    scheduler.tick();
    return old;
  }

  Scheduler::Cell cell_;
};

// Ordinary memory. Two accesses, one of them a write, must be ordered by atomics.
class Plain {
 public:
  explicit Plain(std::string name);
  int read() const;
  void write(int value);
  int value() const { return value_; }
  // Whether the last write, and the last reads, are in this past: all that clocks are for.
  uint64_t known_to(const VectorClock& clock) const {
    return (clock.includes(written_) ? 1U : 0U) + (clock.includes(read_) ? 2U : 0U);
  }

 private:
  void expect_ordered(const VectorClock& before, const char* what) const;

  const std::string name_;
  int value_ = 0;
  VectorClock written_;       // at the last write, the writer's tick only
  mutable VectorClock read_;  // at each fiber's last read
};

struct ModelPlatform {
  template <typename T>
  using Atomic = ModelAtomic<T>;

  static void sleep(ModelAtomic<uint32_t>& word, uint32_t expected, base::Deadline /*deadline*/) {
    Scheduler& scheduler = Scheduler::now();
    scheduler.step();
    const bool sleeps = word.peek() == expected;  // compared and asleep in one, as a futex is
    scheduler.observe(sleeps ? 1 : 0);
    if (sleeps) {
      scheduler.sleep_on(&word);
    }
  }
  static void wake_all(ModelAtomic<uint32_t>& word) {
    Scheduler::now().step();
    Scheduler::now().wake(&word);
  }
  static void pause() {}
  static void yield() {}
};

}  // namespace lockstep::shm::test
