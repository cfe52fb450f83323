// A team of processes over segments: what it computes, and that the death or halt of one rank, at
// any step, leaves nobody waiting.

#include <algorithm>
#include <memory>
#include <new>
#include <signal.h>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "shm/child.h"
#include "shm/fd_exchange.h"
#include "shm/segment.h"
#include "shm/team.h"
#include "shm/thread_team.h"

namespace lockstep::shm::test {
namespace {

using namespace std::chrono_literals;

constexpr int kSize = 4;
constexpr auto kLong = 60s;
constexpr auto kOperationTime = 300ms;  // in the tests of a rank that halts
constexpr size_t kBoundFloats = 300000;

struct Operation {
  size_t count;
  bool is_bound;
};
// By the last to arrive; by claims; in chunks; by claims in place; by slices in place.
constexpr Operation kOperations[] = {
    {1000, false}, {25000, false}, {400000, false}, {25000, true}, {kBoundFloats, true}};
constexpr int kNumOperations = std::size(kOperations);

// What the processes and the test tell each other.
struct Page {
  std::atomic<int> num_done[kSize];  // operations that each rank has completed
  std::atomic<int> num_firings;      // of the victim's hook
  std::atomic<int> state;            // of the victim, when it was hit
};

struct Blow {
  int victim = 1;
  int at = -1;  // the how manieth step; -1: never
  int signal = SIGKILL;
};

Page* page = nullptr;
Blow blow;

void strike(State state) {
  const int firing = page->num_firings.fetch_add(1) + 1;
  if (firing == blow.at) {
    page->state.store(static_cast<int>(state));
    ::raise(blow.signal);
  }
}

// One rank's process: meets the others, binds a buffer, runs the operations.
class Rank {
 public:
  Rank(int rank, FdExchange& with) : rank_(rank), exchange_(with) {
    arena_ = Segment::create(ArenaLayout(kSize).bytes);
    const auto peers = exchange(*arena_);
    team_ = std::make_unique<Team>(rank, addresses(*arena_, peers));
    buffer_ = Segment::create(kBoundFloats * sizeof(float));
    const auto others = exchange(*buffer_);
    team_->bind({.own = buffer_->data(),
                 .bytes = buffer_->bytes(),
                 .addresses = addresses(*buffer_, others),
                 .keep = others,
                 .owner = buffer_});
  }

  Team& team() { return *team_; }

  void run(const Operation& operation, base::Deadline deadline) {
    std::vector<float> ordinary(operation.is_bound ? 0 : operation.count);
    auto* const data =
        operation.is_bound ? reinterpret_cast<float*>(buffer_->data()) : ordinary.data();
    std::fill_n(data, operation.count, static_cast<float>(rank_ + 1));
    team_->run({.kind = Kind::AllReduce,
                .type = DataType::Float32,
                .count = operation.count,
                .input = data,
                .output = data,
                .deadline = deadline});
    constexpr float kSum = kSize * (kSize + 1) / 2;
    require(std::all_of(data, data + operation.count, [](float x) { return x == kSum; }),
            "the sum is wrong");
    page->num_done[rank_].fetch_add(1);
  }

 private:
  std::vector<std::shared_ptr<PeerSegment>> exchange(const Segment& segment) {
    std::vector<std::shared_ptr<PeerSegment>> peers(kSize);
    exchange_.exchange(
        {.fd = segment.fd()},
        [&](int rank, const base::UniqueFd& fd) {
          peers[static_cast<size_t>(rank)] = std::make_shared<PeerSegment>(fd);
        },
        base::Deadline::after(kLong));
    kept_.insert(kept_.end(), peers.begin(), peers.end());
    return peers;
  }

  static std::vector<std::byte*> addresses(const Segment& own,
                                           const std::vector<std::shared_ptr<PeerSegment>>& peers) {
    std::vector<std::byte*> result;
    for (const auto& peer : peers) {
      result.push_back(peer ? peer->data() : own.data());
    }
    return result;
  }

  const int rank_;
  FdExchange& exchange_;
  std::shared_ptr<Segment> arena_;
  std::shared_ptr<Segment> buffer_;
  std::vector<std::shared_ptr<PeerSegment>> kept_;
  std::unique_ptr<Team> team_;
};

class TeamOfProcesses : public ::testing::Test {
 protected:
  TeamOfProcesses()
      : memory_(-1, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS) {}

  // Starts all ranks. Each operation may take `time`; who waits is interrupted when the gate opens.
  void start(const Blow& planned, std::chrono::nanoseconds time) {
    children_.clear();
    page = new (memory_.data()) Page{};
    page->state.store(-1);
    blow = planned;
    gate_ = std::make_unique<Gate>();
    FdExchange rank_zero({.rank = 0, .size = kSize, .secret = "secret", .purpose = "test"});
    for (int rank = 0; rank < kSize; ++rank) {
      children_.emplace_back(
          [this, rank, &rank_zero, time] { return run_rank(rank, rank_zero, time); });
    }
  }

  int run_rank(int rank, FdExchange& rank_zero, std::chrono::nanoseconds time) {
    gate_->open();  // this process's copy
    FdExchange member({.rank = rank, .size = kSize, .secret = "secret", .purpose = "test"});
    FdExchange& exchange = rank == 0 ? rank_zero : member;
    if (rank == 0) {
      rank_zero.accept_all(base::Deadline::after(kLong));
    } else {
      member.join(rank_zero.address(), base::Deadline::after(kLong));
    }
    Rank self(rank, exchange);
    std::thread watch([&] {
      gate_->await();
      self.team().interrupt();
    });
    watch.detach();
    if (rank == blow.victim) {
      set_state_hook(strike);
    }
    // No destructors: the thread may still watch.
    ::_exit(exit_code_of([&] {
      for (const Operation& operation : kOperations) {
        self.run(operation, base::Deadline::after(time));
      }
      return 0;
    }));
  }

  Child& victim() { return children_[static_cast<size_t>(blow.victim)]; }

  // All but the victim end, with 0 or `code`; with `code` if they cannot have done without it.
  void expect_survivors_end(int code) {
    const auto state = static_cast<State>(page->state.load());
    const bool had_arrived =
        state != State::Announce && state != State::Join && state != State::Arrive;
    for (int rank = 0; rank < kSize; ++rank) {
      if (rank == blow.victim) {
        continue;
      }
      const base::ExitStatus status =
          children_[static_cast<size_t>(rank)].wait(base::Deadline::after(kLong));
      const bool is_stopped = status.signal == 0 && status.code == code;
      EXPECT_TRUE(is_stopped || (status.ok() && had_arrived))
          << "rank " << rank << ": " << status.text() << ", step " << blow.at << ", state "
          << static_cast<int>(state);
      if (!had_arrived) {
        EXPECT_LE(page->num_done[rank].load(), page->num_done[blow.victim].load());
      }
    }
  }

  // How many steps the victim takes when nothing happens to it.
  int count_steps(int rank) {
    start({.victim = rank}, kLong);
    for (Child& child : children_) {
      const base::ExitStatus status = child.wait(base::Deadline::after(kLong));
      EXPECT_TRUE(status.ok()) << status.text();
    }
    for (const auto& num_done : page->num_done) {
      EXPECT_EQ(num_done.load(), kNumOperations);
    }
    return page->num_firings.load();
  }

  base::Mapping memory_;
  std::unique_ptr<Gate> gate_;
  std::vector<Child> children_;
};

TEST_F(TeamOfProcesses, ReducesBoundAndOrdinaryMemory) {
  EXPECT_GT(count_steps(1), 5 * kNumOperations);
}

TEST_F(TeamOfProcesses, SurvivorsOfADeathAtAnyStepAreStopped) {
  const std::vector<int> victims = is_long() ? std::vector{0, 1, 2, 3} : std::vector{1};
  int num_hit = 0;
  for (const int rank : victims) {
    const int num_steps = count_steps(rank);
    for (int at = 1; at <= num_steps; ++at) {
      start({.victim = rank, .at = at, .signal = SIGKILL}, kLong);
      const base::ExitStatus status = victim().wait(base::Deadline::after(kLong));
      if (status.ok()) {  // claims fell otherwise: it took fewer steps this time
        continue;
      }
      ASSERT_EQ(status.signal, SIGKILL) << status.text();
      ++num_hit;
      gate_->open();
      expect_survivors_end(kInterrupted);
    }
    EXPECT_GT(num_hit, num_steps / 2);
  }
  RecordProperty("kills", num_hit);
}

TEST_F(TeamOfProcesses, SurvivorsOfAHaltAreStoppedAtTheDeadline) {
  const int num_steps = count_steps(1);
  const int stride = is_long() ? 1 : std::max(1, num_steps / 10);
  int num_hit = 0;
  for (int at = 1; at <= num_steps; at += stride) {
    start({.victim = 1, .at = at, .signal = SIGSTOP}, kOperationTime);
    if (victim().wait_for_stop()) {
      ++num_hit;
      expect_survivors_end(kDeadlineOver);
      victim().kill(SIGCONT);
    }
    // What it can do alone it does; the first wait finds the deadline over.
    const base::ExitStatus status = victim().wait(base::Deadline::after(kLong));
    EXPECT_TRUE(status.ok() || status.code == kDeadlineOver) << status.text() << ", step " << at;
  }
  EXPECT_GT(num_hit, 0);
}

}  // namespace
}  // namespace lockstep::shm::test
