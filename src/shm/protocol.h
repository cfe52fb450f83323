#pragma once

// The flags by which the ranks of one host meet in an operation. All that ranks wait for in the
// collectives is here; what moves bytes is in the algorithms. (One flag that nobody waits for is
// not: RankStatus::staged, see Team::join.)
//
// Operation k (1, 2, ...) of a team of n ranks:
//
//   every rank   announces its call in its own lines, then arrive(k): one fetch_add
//   the last one is alone: no rank is inside operation k - 1 any more and none has passed into k.
//   It
//                compares the announcements, resets the counters that k uses, and opens gate k
//   the others   await_gate(k)
//   all          signal() and await() the counters of the algorithm
//
// Because every operation passes this one point, no counter is ever used by two operations at once,
// and two copies (of announcements, of slots), chosen by the parity of k, are enough for a
// fast rank to prepare k + 1 while a slow one still reads k.
//
// Where every rank has a core of its own, nobody needs to be the last: each rank shows the number
// of its operation in its own lines, and sees every other come (show, await_marks). Marks only
// grow, so none is ever reset.
//
// Waiting: awake for a while (WaitPolicy), then asleep on one word, the bell, that all share. A
// sleeper counts itself in `sleepers`, reads the bell, looks once more, and sleeps only if the bell
// has not been rung since; a rank that made something true looks at `sleepers` afterwards. Both
// sides are sequentially consistent, so one of the two sees the other: no wake-up is lost.
// tests/shm/explore_test.cpp runs this code under all orders of steps.

#include <atomic>
#include <cstdint>

#include "base/deadline.h"
#include "shm/platform.h"

namespace lockstep::shm {

// Why an operation ended without a result. Caught by comm, which knows who and says so.
struct Stopped {
  enum class Why { Interrupted, Deadline };
  Why why = Why::Interrupted;
};

// Two lines: processors fetch pairs of cache lines, and neighbours would share them.
inline constexpr size_t kLineBytes = 128;
inline constexpr int kNumChunkSlots = 3;  // of the pipeline for ordinary memory

// Lies in memory that every rank of the team maps, and is all zero at the start.
template <typename P>
struct Words {
  struct alignas(kLineBytes) Counter {
    typename P::template Atomic<uint64_t> value{0};
  };
  struct alignas(kLineBytes) Bell {
    typename P::template Atomic<uint32_t> rings{0};
    typename P::template Atomic<uint32_t> sleepers{0};
  };
  Bell bell;
  Counter arrivals;                 // of all operations so far: k * n once all have come to k
  Counter gate;                     // the last operation that was opened
  Counter claimed;                  // blocks of the current operation that somebody works on
  Counter completed;                // and those that are done
  Counter finished;                 // ranks that have done their part of it
  Counter staged[kNumChunkSlots];   // ranks that have filled their chunk in this slot
  Counter reduced[kNumChunkSlots];  // ranks that are done with the others' chunks in it
  Counter departed;                 // ranks that have left the team
  Counter taken;  // with marks: blocks claimed in all operations so far, failed claims included
};

// A rank's own word, written by it alone, that others wait for; it only grows.
template <typename P>
struct alignas(kLineBytes) Mark {
  typename P::template Atomic<uint64_t> value{0};
};

template <typename P>
class Protocol {
 public:
  using Counter = typename Words<P>::Counter;

  Protocol(Words<P>& words, int size, WaitPolicy policy)
      : words_(words), size_(static_cast<uint64_t>(size)), policy_(policy) {}

  Words<P>& words() { return words_; }

  // Must not be called while a rank of this process waits.
  void set_policy(WaitPolicy policy) { policy_ = policy; }

  // True for the last rank, which must open(k).
  bool arrive(uint64_t k) { return words_.arrivals.value.fetch_add(1) + 1 == k * size_; }

  // Publishes what the last rank did alone; pairs with the loads in await_gate().
  void open(uint64_t k) {
    words_.gate.value.store(k);
    ring();
  }

  template <typename Departed>
  void await_gate(uint64_t k, base::Deadline deadline, Departed on_departed) {
    wait([&] { return words_.gate.value.load() >= k; }, deadline, on_departed);
  }

  // Adds one; whoever completes `target` wakes the others. Publishes what this rank wrote before.
  void signal(Counter& counter, uint64_t target) {
    if (counter.value.fetch_add(1) + 1 == target) {
      ring();
    }
  }

  // Sees what the `target` ranks wrote before their signal().
  template <typename Departed>
  void await(Counter& counter, uint64_t target, base::Deadline deadline, Departed on_departed) {
    wait([&] { return counter.value.load() >= target; }, deadline, on_departed);
  }

  // Publishes what this rank wrote before.
  void show(typename P::template Atomic<uint64_t>& mark, uint64_t value) {
    mark.store(value);
    ring();
  }

  // Until all_there() finds the marks it looks for, and so what their ranks wrote before.
  template <typename AllThere, typename Departed>
  void await_marks(AllThere all_there, base::Deadline deadline, Departed on_departed) {
    wait(all_there, deadline, on_departed);
  }

  // Makes every wait of this process throw Stopped, now and later. From any thread.
  void interrupt() {
    interrupted_.store(true);
    ring_all();
  }
  bool interrupted() const { return interrupted_.load(); }

  // This rank enters no further operation: the others need not wait for it.
  void depart() {
    words_.departed.value.fetch_add(1);
    ring_all();
  }

 private:
  void ring() {
    if (words_.bell.sleepers.load() != 0) {
      ring_all();
    }
  }
  void ring_all() {
    words_.bell.rings.fetch_add(1);
    P::wake_all(words_.bell.rings);
  }

  template <typename Ready, typename Departed>
  void wait(Ready ready, base::Deadline deadline, Departed on_departed) {
    if (ready() || (policy_.awake.count() > 0 && wait_awake(ready))) {
      return;
    }
    Sleeper sleeper(words_.bell.sleepers);
    while (true) {
      const uint32_t rings = words_.bell.rings.load();  // first: what is rung for later is not lost
      if (ready()) {
        return;
      }
      if (interrupted_.load()) {
        throw Stopped{Stopped::Why::Interrupted};
      }
      if (words_.departed.value.load() != 0) {
        on_departed();
      }
      if (deadline.expired()) {
        throw Stopped{Stopped::Why::Deadline};
      }
      P::sleep(words_.bell.rings, rings, deadline);
    }
  }

  template <typename Ready>
  bool wait_awake(Ready ready) {
    constexpr int kLooksPerClock = 32;  // reading the clock costs more than a look
    const base::Clock::time_point end = base::Clock::now() + policy_.awake;
    do {
      for (int look = 0; look < kLooksPerClock; ++look) {
        if (policy_.yields) {
          P::yield();
        } else {
          P::pause();
        }
        if (ready()) {
          return true;
        }
      }
    } while (base::Clock::now() < end && !interrupted_.load());
    return false;
  }

  // Counted as one that must be woken, for as long as it lives.
  class Sleeper {
   public:
    explicit Sleeper(typename P::template Atomic<uint32_t>& count) : count_(count) {
      count_.fetch_add(1);
    }
    ~Sleeper() { count_.fetch_sub(1); }
    Sleeper(const Sleeper&) = delete;
    Sleeper& operator=(const Sleeper&) = delete;

   private:
    typename P::template Atomic<uint32_t>& count_;
  };

  Words<P>& words_;
  const uint64_t size_;
  WaitPolicy policy_;
  // Belongs to this process and is not shared: each process hears of a failure by itself.
  typename P::template Atomic<bool> interrupted_{false};
};

}  // namespace lockstep::shm
