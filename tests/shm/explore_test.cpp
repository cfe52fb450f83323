// The protocol of protocol.h under every order of steps: nobody waits for ever, the last to arrive
// is alone, what was written before a signal is seen behind the wait for it. Flawed copies show
// that the search finds what it looks for.

#include <array>
#include <cstdio>
#include <type_traits>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shm/model.h"
#include "shm/protocol.h"
#include "shm/thread_team.h"

namespace lockstep::shm::test {
namespace {

using ::testing::HasSubstr;

struct Scenario {
  int num_ranks = 2;
  int num_operations = 2;
  int absent = -1;           // a rank that does not come to the last operation
  bool departs = false;      // it says so
  bool interrupts = false;   // somebody interrupts all ranks, at any time
  bool resets_late = false;  // a flaw: the counters are reset behind the gate
};

// The flag by which a process is interrupted is its only Atomic<bool>: no step where nobody does.
struct Uninterrupted : ModelPlatform {
  struct Never {
    explicit Never(bool /*value*/) {}
    bool load() const { return false; }
    void store(bool /*value*/) {}
  };
  template <typename T>
  using Atomic = std::conditional_t<std::is_same_v<T, bool>, Never, ModelAtomic<T>>;
};

// Operations of a team as Team runs them, with nothing but flags and a few words of data.
template <typename Protocol, typename P>
class Collective : public Program {
 public:
  explicit Collective(Scenario scenario) : scenario_(scenario) {
    for (int rank = 0; rank < scenario_.num_ranks; ++rank) {
      ranks_.push_back(std::make_unique<Rank>(words_, scenario_, rank));
    }
    words_.departed.value.is_quiet = !scenario_.departs;
    for (auto* counter : {&words_.claimed, &words_.completed, &words_.finished}) {
      counter->value.on_access = [this] {
        expect(alone_ < 0 || alone_ == Scheduler::now().current(),
               "a counter is used while the last rank resets it");
      };
    }
  }

  std::vector<std::function<void()>> bodies() override {
    std::vector<std::function<void()>> bodies;
    for (int rank = 0; rank < scenario_.num_ranks; ++rank) {
      bodies.emplace_back([this, rank] { run(rank); });
    }
    if (scenario_.interrupts) {
      bodies.emplace_back([this] {
        for (const auto& rank : ranks_) {
          rank->protocol.interrupt();
        }
      });
    }
    return bodies;
  }

  std::string verdict() const override {
    for (int rank = 0; rank < scenario_.num_ranks; ++rank) {
      const End end = ranks_[static_cast<size_t>(rank)]->end;
      const bool must_fail = scenario_.absent >= 0 && rank != scenario_.absent;
      const bool is_right = end == End::Done       ? !must_fail
                            : end == End::Stopped  ? scenario_.interrupts
                            : end == End::Forsaken ? must_fail && scenario_.departs
                                                   : false;
      if (!is_right) {
        return fmt::format("rank {} ends with {}", rank, static_cast<int>(end));
      }
    }
    return "";
  }

 private:
  enum class End { None, Done, Stopped, Forsaken };
  struct Forsaken {};
  struct Rank {
    Rank(Words<P>& words, const Scenario& scenario, int number)
        : protocol(words, scenario.num_ranks, WaitPolicy{}),
          announced{Plain(fmt::format("announcement 0 of {}", number)),
                    Plain(fmt::format("announcement 1 of {}", number))},
          data(fmt::format("data of {}", number)) {
      entered.is_quiet = !scenario.departs;
    }
    Protocol protocol;
    typename P::template Atomic<uint64_t> entered{0};
    typename P::template Atomic<uint32_t> departed{0};
    Plain announced[2];
    Plain data;
    // What the test knows of it, without a step.
    int num_done = 0;    // operations it has left
    int num_passed = 0;  // gates it has passed
    End end = End::None;
  };

  static void expect(bool holds, const char* what) {
    if (!holds) {
      Scheduler::now().fail(what);
    }
  }

  Rank& rank_at(int rank) { return *ranks_[static_cast<size_t>(rank)]; }

  void run(int rank) {
    Rank& self = rank_at(rank);
    try {
      for (int k = 1; k <= scenario_.num_operations; ++k) {
        if (rank == scenario_.absent && k == scenario_.num_operations) {
          if (scenario_.departs) {
            self.departed.store(1);
            self.protocol.depart();
          }
          break;
        }
        meet(self, k);
        if (k % 2 == 1) {
          work_together(self, rank, k);
        } else {
          work_by_claims(self, k);
        }
        self.num_done = k;
        Scheduler::now().forget(static_cast<uint64_t>(k) * 2 + 1);
      }
      self.end = End::Done;
    } catch (const Stopped&) {
      self.end = End::Stopped;
    } catch (const Forsaken&) {
      self.end = End::Forsaken;
    }
  }

  void meet(Rank& self, int k) {
    const auto round = static_cast<uint64_t>(k);
    self.announced[k % 2].write(k);
    self.entered.store(round, std::memory_order_relaxed);
    if (self.protocol.arrive(round)) {
      begin_alone(k);
      self.protocol.open(round);
      if (scenario_.resets_late) {
        reset(k);
      }
    } else {
      self.protocol.await_gate(round, base::Deadline::never(), find_departed(k));
    }
    expect(alone_ < 0, "a rank passes the gate before it is opened");
    self.num_passed = k;
    expect(task_.read() == k, "behind the gate: what the last rank prepared is not there");
    Scheduler::now().forget(static_cast<uint64_t>(k) * 2);
  }

  void begin_alone(int k) {
    alone_ = Scheduler::now().current();
    for (const auto& rank : ranks_) {
      expect(rank->num_done == k - 1,
             "a rank is in the operation before when the last one arrives");
      expect(rank->num_passed == k - 1, "a rank has passed the gate before the last one arrives");
      expect(rank->announced[k % 2].read() == k, "an announcement is missing");
      expect(rank->end == End::None || scenario_.interrupts, "a rank has gone");
    }
    if (!scenario_.resets_late) {
      reset(k);
    }
    task_.write(k);
    alone_ = -1;
  }

  // Those that operation k uses.
  void reset(int k) {
    if (k % 2 == 1) {
      words_.finished.value.store(0, std::memory_order_relaxed);
    } else {
      words_.claimed.value.store(0, std::memory_order_relaxed);
      words_.completed.value.store(0, std::memory_order_relaxed);
    }
  }

  // As a large reduction: everybody does its part, and returns when all have.
  void work_together(Rank& self, int rank, int k) {
    const auto num_ranks = static_cast<uint64_t>(scenario_.num_ranks);
    self.data.write(k * 10 + rank);
    self.protocol.signal(words_.finished, num_ranks);
    self.protocol.await(words_.finished, num_ranks, base::Deadline::never(), find_departed(k));
    for (int other = 0; other < scenario_.num_ranks; ++other) {
      expect(rank_at(other).data.read() == k * 10 + other, "another rank's data is not there");
    }
  }

  // As a small reduction: whoever comes first does it.
  void work_by_claims(Rank& self, int k) {
    if (words_.claimed.value.fetch_add(1) == 0) {
      result_.write(k);
      self.protocol.signal(words_.completed, 1);
    }
    self.protocol.await(words_.completed, 1, base::Deadline::never(), find_departed(k));
    expect(result_.read() == k, "the result is not there");
  }

  auto find_departed(int k) {
    return [this, k] {
      for (const auto& rank : ranks_) {
        if (rank->departed.load() != 0 && rank->entered.load() < static_cast<uint64_t>(k)) {
          throw Forsaken{};
        }
      }
    };
  }

  const Scenario scenario_;
  Words<P> words_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  Plain task_{"task"};
  Plain result_{"result"};
  int alone_ = -1;  // the rank between its arrive() and its open()
};

template <typename P, typename Protocol = Protocol<P>>
SearchResult explore(const Scenario& scenario, int max_preemptions = -1) {
  const SearchResult result =
      search({.make = [&] { return std::make_unique<Collective<Protocol, P>>(scenario); },
              .max_preemptions = max_preemptions});
  fmt::print(
      "  {} ranks, {} operations, {}: {}\n", scenario.num_ranks, scenario.num_operations,
      max_preemptions < 0 ? "every order" : fmt::format("<= {} preemptions", max_preemptions),
      result.text());
  std::fflush(stdout);
  return result;
}

void expect_sound(const SearchResult& result, uint64_t least_states) {
  EXPECT_EQ(result.failure, "");
  EXPECT_GE(result.num_states, least_states);
}

class Explore : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kIsTsan) {
      GTEST_SKIP() << "fibers of one thread: nothing for ThreadSanitizer to see";
    }
  }
};

// ---- the protocol holds ----

TEST_F(Explore, TwoRanksInEveryOrder) {
  expect_sound(explore<Uninterrupted>({.num_ranks = 2, .num_operations = 2}), 3000);
  expect_sound(explore<Uninterrupted>({.num_ranks = 2, .num_operations = 3}), 5000);
}

TEST_F(Explore, ThreeRanks) {
  const int most = is_long() ? -1 : 3;  // 560,000 states without a bound
  expect_sound(explore<Uninterrupted>({.num_ranks = 3, .num_operations = 1}, most), 10000);
  expect_sound(explore<Uninterrupted>({.num_ranks = 3, .num_operations = 2}, is_long() ? 4 : 2),
               50000);
}

TEST_F(Explore, FourRanksWithFewPreemptions) {
  const int most = is_long() ? 3 : 1;
  expect_sound(explore<Uninterrupted>({.num_ranks = 4, .num_operations = 2}, most), 10000);
}

TEST_F(Explore, AnInterruptEndsEveryWait) {
  const Scenario one{.num_ranks = 2, .num_operations = 1, .interrupts = true};
  expect_sound(explore<ModelPlatform>(one), 20000);
  Scenario scenario{.num_ranks = 2, .num_operations = 2, .interrupts = true};
  // 520,000 and 110,000 states without a bound.
  expect_sound(explore<ModelPlatform>(scenario, is_long() ? -1 : 2), 5000);
  scenario.absent = 1;
  expect_sound(explore<ModelPlatform>(scenario, is_long() ? -1 : 3), 5000);
  scenario.num_ranks = 3;
  scenario.absent = 2;
  expect_sound(explore<ModelPlatform>(scenario, is_long() ? 2 : 1), 50000);
}

TEST_F(Explore, ADepartureEndsEveryWait) {
  for (const int absent : {0, 1}) {
    expect_sound(explore<Uninterrupted>({.num_ranks = 2, .absent = absent, .departs = true}), 500);
  }
  expect_sound(explore<Uninterrupted>({.num_ranks = 3, .absent = 2, .departs = true}, 2), 1000);
}

// ---- the search finds what is wrong ----

// Sleeps although the bell has been rung since it was read.
struct BlindSleep : ModelPlatform {
  static void sleep(ModelAtomic<uint32_t>& word, uint32_t /*expected*/,
                    base::Deadline /*deadline*/) {
    Scheduler::now().step();
    Scheduler::now().sleep_on(&word);
  }
};

// Nobody is ever woken.
struct NoWake : ModelPlatform {
  static void wake_all(ModelAtomic<uint32_t>& /*word*/) { Scheduler::now().step(); }
};

enum class Flaw {
  BellAfterLook,    // what is rung for between the look and the bell is lost
  CountedLate,      // the sleeper is not counted when it looks for the last time
  RingBeforeStore,  // who is woken sees nothing, and sleeps on
  NoRing,           // the last signal wakes nobody
  RelaxedGate,      // the gate publishes nothing
};

// Protocol, with one thing wrong.
template <Flaw kFlaw>
class FlawedProtocol {
 public:
  using W = Words<ModelPlatform>;

  FlawedProtocol(W& words, int size, WaitPolicy /*policy*/)
      : words_(words), size_(static_cast<uint64_t>(size)) {}

  bool arrive(uint64_t k) { return words_.arrivals.value.fetch_add(1) + 1 == k * size_; }

  void open(uint64_t k) {
    if (kFlaw == Flaw::RingBeforeStore) {
      ring();
    }
    words_.gate.value.store(
        k, kFlaw == Flaw::RelaxedGate ? std::memory_order_relaxed : std::memory_order_seq_cst);
    if (kFlaw != Flaw::RingBeforeStore) {
      ring();
    }
  }

  template <typename Departed>
  void await_gate(uint64_t k, base::Deadline /*deadline*/, Departed /*on_departed*/) {
    wait([&] { return words_.gate.value.load() >= k; });
  }

  void signal(W::Counter& counter, uint64_t target) {
    if (counter.value.fetch_add(1) + 1 == target && kFlaw != Flaw::NoRing) {
      ring();
    }
  }

  template <typename Departed>
  void await(W::Counter& counter, uint64_t target, base::Deadline /*deadline*/,
             Departed /*departed*/) {
    wait([&] { return counter.value.load() >= target; });
  }

  void interrupt() {}
  void depart() {}

 private:
  void ring() {
    if (words_.bell.sleepers.load() != 0) {
      words_.bell.rings.fetch_add(1);
      ModelPlatform::wake_all(words_.bell.rings);
    }
  }

  template <typename Ready>
  void wait(Ready ready) {
    if (ready()) {
      return;
    }
    if (kFlaw != Flaw::CountedLate) {
      words_.bell.sleepers.fetch_add(1);
    }
    while (true) {
      uint32_t rings = kFlaw == Flaw::BellAfterLook ? 0 : words_.bell.rings.load();
      if (ready()) {
        break;
      }
      if (kFlaw == Flaw::BellAfterLook) {
        rings = words_.bell.rings.load();
      }
      if (kFlaw == Flaw::CountedLate) {
        words_.bell.sleepers.fetch_add(1);
      }
      ModelPlatform::sleep(words_.bell.rings, rings, base::Deadline::never());
      if (kFlaw == Flaw::CountedLate) {
        words_.bell.sleepers.fetch_sub(1);
      }
    }
    if (kFlaw != Flaw::CountedLate) {
      words_.bell.sleepers.fetch_sub(1);
    }
  }

  W& words_;
  const uint64_t size_;
};

template <Flaw kFlaw>
std::string failure_of_flawed() {
  return explore<ModelPlatform, FlawedProtocol<kFlaw>>({.num_ranks = 2, .num_operations = 2})
      .failure;
}

TEST_F(Explore, FindsALostWakeUp) {
  EXPECT_THAT(explore<BlindSleep>({}).failure, HasSubstr("deadlock"));
  EXPECT_THAT(explore<NoWake>({}).failure, HasSubstr("deadlock"));
  EXPECT_THAT(failure_of_flawed<Flaw::BellAfterLook>(), HasSubstr("deadlock"));
  EXPECT_THAT(failure_of_flawed<Flaw::CountedLate>(), HasSubstr("deadlock"));
  EXPECT_THAT(failure_of_flawed<Flaw::RingBeforeStore>(), HasSubstr("deadlock"));
  EXPECT_THAT(failure_of_flawed<Flaw::NoRing>(), HasSubstr("deadlock"));
}

TEST_F(Explore, FindsAMissingOrder) {
  EXPECT_THAT(failure_of_flawed<Flaw::RelaxedGate>(), HasSubstr("data race"));
}

TEST_F(Explore, FindsAResetBehindTheGate) {
  EXPECT_NE(explore<Uninterrupted>({.num_operations = 2, .resets_late = true}).failure, "");
}

TEST_F(Explore, FindsAWaitThatNobodyEnds) {
  EXPECT_THAT(explore<Uninterrupted>({.absent = 1}).failure, HasSubstr("deadlock"));
}

}  // namespace
}  // namespace lockstep::shm::test
