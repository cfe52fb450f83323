// A rank that dies or stops at every step of the protocol, through the Group: named errors on every
// survivor, in time. The steps are those of shm::State; the victim counts them in an undisturbed
// run first.

#include <atomic>
#include <fstream>
#include <limits>
#include <optional>
#include <poll.h>
#include <signal.h>
#include <sstream>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"
#include "comm/every_backend.h"
#include "shm/team.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using testing_support::is_long;
using testing_support::rank_argument;

class Injection : public testing_support::EveryBackend {};

constexpr const char* kNoStates = "Gloo has no such states";
constexpr int kWorld = 4;
constexpr int kVictim = 2;

// One way through the code: the operation and the memory it works on.
struct Path {
  const char* name;
  int64_t numel;
  bool is_bound;
  void (*call)(Group& group, const at::Tensor& x, std::chrono::milliseconds timeout);
};

const std::vector<Path> kPaths = {
    {"tiny", 100, false,
     [](Group& g, const at::Tensor& x, auto t) { g.all_reduce(x, {.timeout = t}); }},
    {"claimed", 20'000, false,
     [](Group& g, const at::Tensor& x, auto t) { g.all_reduce(x, {.timeout = t}); }},
    {"pipelined", 300'000, false,
     [](Group& g, const at::Tensor& x, auto t) { g.all_reduce(x, {.timeout = t}); }},
    {"in place", 400'000, true,
     [](Group& g, const at::Tensor& x, auto t) { g.all_reduce(x, {.timeout = t}); }},
    {"scatter", 280'000, false,
     [](Group& g, const at::Tensor& x, auto t) {
       g.reduce_scatter(at::empty({x.numel() / kWorld}), x, {.timeout = t});
     }},
    {"broadcast", 210'000, false,
     [](Group& g, const at::Tensor& x, auto t) {
       g.broadcast(x, {.root = kVictim, .timeout = t});
     }},
    {"gather", 1000, true,
     [](Group& g, const at::Tensor& x, auto t) {
       g.all_gather(at::empty({x.numel() * kWorld}), x, {.timeout = t});
     }},
    {"exchange", 210'000, false,
     [](Group& g, const at::Tensor& x, auto t) {
       g.all_to_all(at::empty_like(x), x, {.timeout = t});
     }},
    {"barrier", 0, false, [](Group& g, const at::Tensor&, auto t) { g.barrier({.timeout = t}); }},
};

// What the victim's hook does. Set before the operation; only one thread of it is in the protocol.
int num_states = 0;
int halt_at = 0;  // 0: only count
int halt_signal = 0;

void on_state(shm::State /*state*/) {
  if (++num_states == halt_at) {
    ::kill(::getpid(), halt_signal);
    if (halt_signal == SIGKILL) {
      testing_support::die_now();
    }
  }
}

struct Argument {
  size_t path = 0;
  int state = 0;

  std::string text() const { return fmt::format("{} {}", path, state); }
  static Argument parse(const std::string& text) {
    Argument argument;
    std::istringstream stream(text);
    stream >> argument.path >> argument.state;
    return argument;
  }
};

at::Tensor make_input(Group& group, const Path& path) {
  if (!path.is_bound) {
    return at::ones({path.numel});
  }
  const at::Tensor x = group.allocate(path.numel * 4).view(at::kFloat);
  x.fill_(1.0f);
  return x;
}

int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

// Calls until it fails: the ranks that need no more of the victim may end the first call well.
void call_until_lost(Group& group, const Path& path, const at::Tensor& x) {
  for (;;) {
    path.call(group, x, 20s);
  }
}

// When a process ended: what it does before that is no time that the others took to hear of it.
class DeathWatcher {
 public:
  explicit DeathWatcher(pid_t pid) : fd_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {
    EXPECT_TRUE(fd_) << base::errno_text(errno);  // it is not reaped before the test is over
    thread_ = std::thread([this] {
      pollfd entry{fd_.get(), POLLIN, 0};
      while (::poll(&entry, 1, -1) < 0 && errno == EINTR) {
      }
      ns_ = testing_support::unstalled_now_ns();
    });
  }
  ~DeathWatcher() { thread_.join(); }

  int64_t ns() {
    thread_.join();
    thread_ = std::thread([] {});
    return ns_;
  }

 private:
  base::UniqueFd fd_;
  int64_t ns_ = 0;
  std::thread thread_;
};

void die_at_state(Group& group) {
  const Argument argument = Argument::parse(rank_argument());
  const Path& path = kPaths[argument.path];
  Store store = group.store();
  const std::string key = fmt::format("{}/die/{}", testing_support::case_name(), rank_argument());
  const at::Tensor x = make_input(group, path);
  path.call(group, x, 20s);
  group.barrier();
  if (group.rank() == kVictim) {
    store.get(key + "/ready");  // the others are out of the barrier
    num_states = 0;
    halt_at = argument.state;
    halt_signal = SIGKILL;
    shm::set_state_hook(on_state);
    store.set(key + "/pid", std::to_string(::getpid()));
    call_until_lost(group, path, x);
  }
  if (store.add(key + "/num", 1) == kWorld - 1) {
    store.set(key + "/ready", "1");
  }
  DeathWatcher death(static_cast<pid_t>(std::stoi(store.get(key + "/pid"))));
  EXPECT_THROW(
      {
        try {
          call_until_lost(group, path, x);
        } catch (const PeerLostError& error) {
          EXPECT_THAT(error.what(), HasSubstr(fmt::format("rank {} (host ", kVictim)));
          EXPECT_THAT(error.what(), HasSubstr("pid "));
          throw;
        }
      },
      PeerLostError);
  const int64_t told_ns = testing_support::unstalled_now_ns();
  EXPECT_LT(static_cast<double>(told_ns - death.ns()) * 1e-9, 1.0) << path.name;
  EXPECT_THROW(group.barrier(), PeerLostError);
}

// True while the process is stopped by a signal.
bool is_stopped(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');
  return name_end != std::string::npos && text.compare(name_end, 3, ") T") == 0;
}

// When the process was first seen stopped. A thread of its own looks until then, or until told that
// it is over.
class StopWatcher {
 public:
  explicit StopWatcher(pid_t pid)
      : thread_([this, pid] {
          while (!is_over_ && !is_stopped(pid)) {
            std::this_thread::sleep_for(1ms);
          }
          if (!is_over_) {
            seen_ns_ = now_ns();
          }
        }) {}

  int64_t end() {
    is_over_ = true;
    thread_.join();
    return seen_ns_;
  }

 private:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  std::atomic<bool> is_over_ = false;
  int64_t seen_ns_ = kNever;
  std::thread thread_;
};

constexpr int kWatcher = 3;  // the rank that looks at the victim; on its node too

// The victim: passes states until it stops, and goes on when it is woken.
void stop_and_wake(Group& group, const Path& path, const Argument& argument, const at::Tensor& x,
                   std::chrono::milliseconds timeout, const std::string& key) {
  group.store().set(key + "/pid", std::to_string(::getpid()));
  num_states = 0;
  halt_at = argument.state;
  halt_signal = SIGSTOP;
  shm::set_state_hook(on_state);
  const auto until_error = [&] {
    for (;;) {
      path.call(group, x, timeout);
    }
  };
  // It finds the group given up: by the others, or by its own clock.
  EXPECT_THROW(until_error(), TimeoutError);
  shm::set_state_hook(nullptr);
  group.store().set(key + "/awake", "1");
}

// Another rank: calls until its time is up, and returns what it was told.
std::string call_until_late(Group& group, const Path& path, const at::Tensor& x,
                            std::chrono::milliseconds timeout, const std::string& key) {
  Store store = group.store();
  const auto victim = static_cast<pid_t>(std::stoi(store.get(key + "/pid")));
  std::optional<StopWatcher> watcher;
  if (group.rank() == kWatcher) {
    watcher.emplace(victim);
  }
  int64_t begin = 0;
  std::string message;
  try {
    for (;;) {
      begin = now_ns();
      path.call(group, x, timeout);
    }
  } catch (const TimeoutError& error) {
    message = error.what();
  }
  store.set(fmt::format("{}/begin/{}", key, group.rank()), std::to_string(begin));
  if (watcher) {
    store.set(key + "/stopped", std::to_string(watcher->end()));
    while (!store.try_get(key + "/awake")) {  // it may stop only now
      ::kill(victim, SIGCONT);
      std::this_thread::sleep_for(1ms);
    }
  }
  return message;
}

// False if the victim was not seen stopped before the first of the others could be late: on a busy
// host it may need longer to come to its state, and then it is not the one to blame.
bool names_a_stopped_rank(Group& group, const Path& path, const Argument& argument,
                          std::chrono::milliseconds timeout) {
  Store store = group.store();
  const std::string key =
      fmt::format("{}/stop/{}/{}", testing_support::case_name(), argument.text(), timeout.count());
  const at::Tensor x = make_input(group, path);
  path.call(group, x, 20s);
  std::string message;
  if (group.rank() == kVictim) {
    stop_and_wake(group, path, argument, x, timeout, key);
  } else {
    message = call_until_late(group, path, x, timeout, key);
  }
  const int64_t stopped = std::stoll(store.get(key + "/stopped"));
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank == kVictim) {
      continue;
    }
    const int64_t begin = std::stoll(store.get(fmt::format("{}/begin/{}", key, rank)));
    if (stopped >= begin + std::chrono::nanoseconds(timeout).count()) {
      return false;
    }
  }
  if (group.rank() != kVictim) {
    EXPECT_THAT(message, HasSubstr(fmt::format("rank {} ", kVictim)));
  }
  return true;
}

void stop_at_state(Group& given) {
  constexpr auto kLongest = 20s;
  const Argument argument = Argument::parse(rank_argument());
  const Path& path = kPaths[argument.path];
  std::optional<Group> group = given;
  for (std::chrono::milliseconds timeout = 300ms;; timeout *= 8) {
    ASSERT_LE(timeout, kLongest) << "rank " << kVictim << " never comes to state "
                                 << argument.state;
    if (names_a_stopped_rank(*group, path, argument, timeout)) {
      return;
    }
    group = make_group(given.store(),
                       {.name = fmt::format("{}/again/{}/{}", testing_support::case_name(),
                                            argument.text(), timeout.count()),
                        .rank = given.rank(),
                        .size = given.size(),
                        .timeout = 20s,
                        .backend = testing_support::choice_of(given)});
  }
}

// An upper bound, on either backend.
int most_states(const Path& path) {
  constexpr int64_t kManyChunks = 100'000;
  if (path.numel <= 100) {
    return 14;
  }
  return !path.is_bound && path.numel > kManyChunks ? 44 : 30;
}

// Every rank passes states on every path, and no more than most_states() says.
void count_states(Group& group) {
  const Path& path = kPaths[Argument::parse(rank_argument()).path];
  const at::Tensor x = make_input(group, path);
  group.barrier();
  num_states = 0;
  halt_at = 0;
  shm::set_state_hook(on_state);
  path.call(group, x, 20s);
  shm::set_state_hook(nullptr);
  EXPECT_GE(num_states, 4) << path.name;
  EXPECT_LE(num_states, most_states(path)) << path.name;
}

TEST_P(Injection, PathsPassAsManyStatesAsAreTried) {
  if (is_gloo()) {
    GTEST_SKIP() << kNoStates;
  }
  for (size_t i = 0; i < kPaths.size(); ++i) {
    run(kWorld, count_states, {.argument = Argument{i, 0}.text()});
  }
}

TEST_P(Injection, ARankThatDiesAtAnyStepIsNamedByAll) {
  if (is_gloo()) {
    GTEST_SKIP() << kNoStates;
  }
  for (size_t i = 0; i < kPaths.size(); ++i) {
    for (int state = 1; state <= most_states(kPaths[i]); ++state) {
      SCOPED_TRACE(::testing::Message() << kPaths[i].name << ", state " << state);
      run(kWorld, die_at_state, {.argument = Argument{i, state}.text(), .dies = {kVictim}});
    }
  }
}

TEST_P(Injection, ARankThatStopsAtAnyStepIsNamedByAll) {
  if (is_gloo()) {
    GTEST_SKIP() << kNoStates;
  }
  const int stride = is_long() ? 1 : 6;  // each waits for a time-out
  for (size_t i = 0; i < kPaths.size(); ++i) {
    for (int state = 1; state <= most_states(kPaths[i]); state += stride) {
      SCOPED_TRACE(::testing::Message() << kPaths[i].name << ", state " << state);
      run(kWorld, stop_at_state, {.argument = Argument{i, state}.text()});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(On, Injection, ::testing::ValuesIn(testing_support::kEveryBackend),
                         testing_support::name_of);

}  // namespace
}  // namespace lockstep
