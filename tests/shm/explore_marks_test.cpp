// The marks of protocol.h, by which ranks meet that have a core each, under every order of steps:
// nobody waits for ever, and what a rank wrote before it showed a mark is there for whoever saw it.
// Two announcements, by the parity of the operation, are enough. Flawed copies show that the search
// would find it.

#include <cstdio>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shm/model.h"
#include "shm/protocol.h"
#include "shm/thread_team.h"

namespace lockstep::shm::test {
namespace {

using ::testing::HasSubstr;

enum class Flaw {
  None,
  NoRing,       // a mark wakes nobody
  RelaxedMark,  // a mark publishes nothing
  NoParity,     // one announcement for all operations: a fast rank writes what a slow one reads
  NoDone,       // ranks leave an operation while others still work in it
};

struct Scenario {
  int num_ranks = 2;
  int num_operations = 3;
  bool interrupts = false;  // somebody interrupts all ranks, at any time
  Flaw flaw = Flaw::None;
};

class Rounds : public Program {
 public:
  using P = ModelPlatform;

  explicit Rounds(Scenario scenario) : scenario_(scenario) {
    for (int rank = 0; rank < scenario_.num_ranks; ++rank) {
      ranks_.push_back(std::make_unique<Rank>(words_, scenario_.num_ranks, rank));
    }
    words_.departed.value.is_quiet = true;
  }

  std::vector<std::function<void()>> bodies() override {
    std::vector<std::function<void()>> bodies;
    for (const auto& rank : ranks_) {
      bodies.emplace_back([this, &self = *rank] { run(self); });
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
    for (const auto& rank : ranks_) {
      if (!rank->is_done && !scenario_.interrupts) {
        return fmt::format("rank {} has not ended its operations", rank->number);
      }
    }
    return "";
  }

 private:
  using Word = P::Atomic<uint64_t>;

  struct Rank {
    Rank(Words<P>& words, int num_ranks, int index)
        : protocol(words, num_ranks, WaitPolicy{}),
          announced{Plain(fmt::format("announcement 0 of {}", index)),
                    Plain(fmt::format("announcement 1 of {}", index))},
          data(fmt::format("data of {}", index)),
          number(index) {}
    Protocol<P> protocol;
    Plain announced[2];
    Word shown[2] = {Word(0), Word(0)};
    Plain data;
    Word done{0};
    Word unused{0};
    const int number;
    uint64_t num_taken = 0;
    bool is_done = false;
  };

  void run(Rank& self) {
    try {
      for (int k = 1; k <= scenario_.num_operations; ++k) {
        meet(self, k);
        if (k % 3 == 1) {
          work_together(self, k);
        } else if (k % 3 == 0) {
          work_by_claims(self, k);
        }  // else nothing more: as a small operation through the slots
        Scheduler::now().forget(static_cast<uint64_t>(k));
      }
      self.is_done = true;
    } catch (const Stopped&) {
    }
  }

  void meet(Rank& self, int k) {
    const int place = scenario_.flaw == Flaw::NoParity ? 0 : k % 2;
    self.announced[place].write(k);
    show(self, self.shown[place], k);
    await(self, k, [place](Rank& rank) -> Word& { return rank.shown[place]; });
    for (const auto& rank : ranks_) {
      if (rank->announced[place].read() != k) {
        Scheduler::now().fail("an announcement is not there");
      }
    }
  }

  void work_together(Rank& self, int k) {
    self.data.write(k * 10 + self.number);
    finish(self, k);
    for (const auto& rank : ranks_) {
      if (rank->data.read() != k * 10 + rank->number) {
        Scheduler::now().fail("another rank's data is not there");
      }
    }
  }

  void work_by_claims(Rank& self, int k) {
    while (words_.taken.value.fetch_add(1) - self.num_taken < 1) {
      result_.write(k);
    }
    self.num_taken += 1 + static_cast<uint64_t>(scenario_.num_ranks);
    finish(self, k);
    if (result_.read() != k) {
      Scheduler::now().fail("the result is not there");
    }
  }

  void finish(Rank& self, int k) {
    show(self, self.done, k);
    if (scenario_.flaw != Flaw::NoDone) {
      await(self, k, [](Rank& rank) -> Word& { return rank.done; });
    }
  }

  void show(Rank& self, Word& mark, int k) {
    const auto value = static_cast<uint64_t>(k);
    if (scenario_.flaw == Flaw::NoRing) {
      mark.store(value);
    } else if (scenario_.flaw == Flaw::RelaxedMark) {
      mark.store(value, std::memory_order_relaxed);
      self.protocol.show(self.unused, 0);
    } else {
      self.protocol.show(mark, value);
    }
  }

  template <typename MarkOf>
  void await(Rank& self, int k, MarkOf mark_of) {
    const auto all_there = [&] {
      bool all = true;
      for (const auto& rank : ranks_) {
        all &= mark_of(*rank).load() >= static_cast<uint64_t>(k);
      }
      return all;
    };
    self.protocol.await_marks(all_there, base::Deadline::never(), [] {});
  }

  const Scenario scenario_;
  Words<P> words_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  Plain result_{"result"};
};

SearchResult explore(const Scenario& scenario, int max_preemptions = -1) {
  const SearchResult result = search({.make = [&] { return std::make_unique<Rounds>(scenario); },
                                      .max_preemptions = max_preemptions});
  fmt::print("  {} ranks, {} operations: {}\n", scenario.num_ranks, scenario.num_operations,
             result.text());
  std::fflush(stdout);
  return result;
}

class ExploreMarks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kIsTsan) {
      GTEST_SKIP() << "fibers of one thread: nothing for ThreadSanitizer to see";
    }
  }
};

TEST_F(ExploreMarks, TwoRanks) {
  const SearchResult result = explore({}, is_long() ? -1 : 4);
  EXPECT_EQ(result.failure, "");
  EXPECT_GE(result.num_states, 5000U);
}

TEST_F(ExploreMarks, ThreeRanks) {
  const SearchResult result = explore({.num_ranks = 3}, is_long() ? 3 : 1);
  EXPECT_EQ(result.failure, "");
  EXPECT_GE(result.num_states, 2000U);
}

TEST_F(ExploreMarks, AnInterruptEndsEveryWait) {
  const SearchResult result = explore({.num_operations = 2, .interrupts = true}, is_long() ? 4 : 2);
  EXPECT_EQ(result.failure, "");
  EXPECT_GE(result.num_states, 2000U);
}

TEST_F(ExploreMarks, FindsWhatIsWrong) {
  EXPECT_THAT(explore({.flaw = Flaw::NoRing}, 3).failure, HasSubstr("deadlock"));
  EXPECT_THAT(explore({.flaw = Flaw::RelaxedMark}, 3).failure, HasSubstr("data race"));
  EXPECT_NE(explore({.flaw = Flaw::NoParity}, 3).failure, "");
  EXPECT_NE(explore({.flaw = Flaw::NoDone}, 3).failure, "");
}

}  // namespace
}  // namespace lockstep::shm::test
