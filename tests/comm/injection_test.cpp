// A rank that dies or stops at every step of the protocol, through the Group: named errors on every
// survivor, in time. The steps are those of shm::State; the victim counts them in an undisturbed
// run first.

#include <signal.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "comm/every_backend.h"
#include "shm/team.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using testing_support::is_long;
using testing_support::rank_argument;

class Injection : public testing_support::EveryBackend {};

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

void die_at_state(Group& group) {
  const Argument argument = Argument::parse(rank_argument());
  const Path& path = kPaths[argument.path];
  Store store = group.store();
  const std::string key = fmt::format("{}/die/{}", group.backend_name(), rank_argument());
  const at::Tensor x = make_input(group, path);
  path.call(group, x, 20s);
  group.barrier();
  if (group.rank() == kVictim) {
    store.get(key + "/ready");  // the others are out of the barrier
    num_states = 0;
    halt_at = argument.state;
    halt_signal = SIGKILL;
    shm::set_state_hook(on_state);
    store.set(key + "/alive", std::to_string(now_ns()));
    call_until_lost(group, path, x);
  }
  if (store.add(key + "/num", 1) == kWorld - 1) {
    store.set(key + "/ready", "1");
  }
  const int64_t alive = std::stoll(store.get(key + "/alive"));  // it dies within moments
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
  EXPECT_LT(static_cast<double>(now_ns() - alive) * 1e-9, 1.0) << path.name;
  EXPECT_THROW(group.barrier(), PeerLostError);
}

void stop_at_state(Group& group) {
  const Argument argument = Argument::parse(rank_argument());
  const Path& path = kPaths[argument.path];
  Store store = group.store();
  const std::string key = fmt::format("{}/stop/{}", group.backend_name(), rank_argument());
  const at::Tensor x = make_input(group, path);
  path.call(group, x, 20s);
  if (group.rank() == kVictim) {
    store.set(key + "/pid", std::to_string(::getpid()));
    num_states = 0;
    halt_at = argument.state;
    halt_signal = SIGSTOP;
    shm::set_state_hook(on_state);
  }
  const auto until_error = [&] {
    for (;;) {
      path.call(group, x, 300ms);
    }
  };
  if (group.rank() == kVictim) {
    // Woken by the others, it finds the group given up: by them, or by its own clock.
    EXPECT_THROW(until_error(), TimeoutError);
    shm::set_state_hook(nullptr);
    return;
  }
  try {
    until_error();
  } catch (const TimeoutError& error) {
    EXPECT_THAT(error.what(), HasSubstr(fmt::format("rank {} ", kVictim)));
  }
  ::kill(std::stoi(store.get(key + "/pid")), SIGCONT);
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
    return;  // has no such states
  }
  for (size_t i = 0; i < kPaths.size(); ++i) {
    run(kWorld, count_states, {.argument = Argument{i, 0}.text()});
  }
}

TEST_P(Injection, ARankThatDiesAtAnyStepIsNamedByAll) {
  if (is_gloo()) {
    return;
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
    return;
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
