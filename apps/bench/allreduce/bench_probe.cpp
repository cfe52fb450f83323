#include "bench/allreduce/bench_probe.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <sched.h>
#include <thread>
#include <vector>

#include "base/process/cores.h"

namespace lockstep {
namespace {

constexpr int kTripsPerRun = 50;
constexpr size_t kNumRuns = 41;           // odd: the median is one of them
constexpr int kSpinsBeforeYield = 20000;  // the other thread has lost its core

struct alignas(64) Line {
  std::atomic<uint32_t> turn{0};
};

void await(const Line& line, uint32_t turn) {
  // Pairs with the release stores of play(): the line's way is what is measured.
  for (int spins = 0; line.turn.load(std::memory_order_acquire) != turn; ++spins) {
    if (spins >= kSpinsBeforeYield) {
      ::sched_yield();
      spins = 0;
    }
  }
}

void play(Line& line, uint32_t first, int num_turns) {
  for (int i = 0; i < num_turns; ++i) {
    const uint32_t turn = first + 2 * static_cast<uint32_t>(i);
    await(line, turn);
    line.turn.store(turn + 1, std::memory_order_release);  // pairs with the acquire in await()
  }
}

// The first call decides, which comes before take_own_core() binds a thread.
const std::vector<int>& cores_at_start() {
  static const std::vector<int> cores = base::usable_cores();
  return cores;
}

// The first call decides here too: a thread that is bound already would count one core.
int num_cores_at_start() {
  static const int num_cores = base::num_usable_cores();
  return num_cores;
}

}  // namespace

bool take_own_core(int rank, int num_ranks) {
  const std::vector<int>& cores = cores_at_start();
  return num_ranks <= num_cores_at_start() && base::stay_on_core(cores[static_cast<size_t>(rank)]);
}

std::optional<double> core_roundtrip_ns() {
  const std::vector<int>& cores = cores_at_start();
  cpu_set_t before;
  if (cores.size() < 2 || ::sched_getaffinity(0, sizeof before, &before) != 0) {
    return std::nullopt;
  }
  Line line;
  constexpr int kTurns = static_cast<int>(kNumRuns) * kTripsPerRun;
  std::thread other([&] {
    base::stay_on_core(cores[1]);
    play(line, 1, kTurns);
  });
  base::stay_on_core(cores[0]);
  std::array<double, kNumRuns> runs;
  uint32_t first = 0;
  for (double& run : runs) {
    const auto start = std::chrono::steady_clock::now();
    play(line, first, kTripsPerRun);
    first += 2 * kTripsPerRun;
    await(line, first);
    run =
        std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() /
        kTripsPerRun;
  }
  other.join();
  ::sched_setaffinity(0, sizeof before, &before);
  std::nth_element(runs.begin(), runs.begin() + kNumRuns / 2, runs.end());
  return runs[kNumRuns / 2];
}

__attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3"))) void add_one_to_all(
    void* data, size_t bytes) {
  auto* words = static_cast<uint32_t*>(data);
  const size_t count = bytes / sizeof *words;
  for (size_t i = 0; i < count; ++i) {
    words[i] += 1;
  }
}

}  // namespace lockstep
