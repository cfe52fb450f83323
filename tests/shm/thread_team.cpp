#include "shm/thread_team.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <sys/mman.h>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

namespace lockstep::shm::test {
namespace {

using namespace std::chrono_literals;

constexpr auto kCaseTime = 60s;  // far beyond what any takes: a hang is a failure
constexpr size_t kMaxOffsetBytes = 512;
constexpr size_t kGuardBytes = 64;  // behind every input and output, never to be written
constexpr std::byte kGuard{0x5A};
constexpr std::byte kScribble{0xEE};

base::Mapping plain_memory(size_t bytes) {
  return {-1, std::max<size_t>(bytes, 1), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS};
}

bool guard_holds(const std::byte* end) {
  return std::all_of(end, end + kGuardBytes, [](std::byte value) { return value == kGuard; });
}

bool equal(const std::byte* a, const std::byte* b, size_t bytes) {
  return bytes == 0 || std::memcmp(a, b, bytes) == 0;
}

}  // namespace

bool is_long() {
  const char* value = std::getenv("LOCKSTEP_LONG_TESTS");
  return value != nullptr && std::strcmp(value, "1") == 0;
}

Arenas::Arenas(int size) {
  const size_t bytes = ArenaLayout(size).bytes;
  memory_ = plain_memory(bytes * static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    addresses_.push_back(memory_.data() + static_cast<size_t>(rank) * bytes);
  }
}

int num_cores(Cores cores, int num_ranks) {
  return cores == Cores::Enough ? num_ranks : num_ranks - 1;
}

ThreadTeam::ThreadTeam(int size, Cores cores) : arenas_(size) {
  for (int rank = 0; rank < size; ++rank) {
    teams_.push_back(std::make_unique<Team>(rank, arenas_.addresses(), num_cores(cores, size)));
  }
}

void ThreadTeam::run(const std::function<void(int rank)>& body) {
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) {
          first = std::current_exception();
        }
        for (const auto& team : teams_) {
          team->interrupt();
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (first) {
    std::rethrow_exception(first);
  }
}

std::vector<std::byte*> ThreadTeam::bind(size_t bytes) {
  std::vector<std::byte*> addresses;
  for (int rank = 0; rank < size(); ++rank) {
    addresses.push_back(buffers_.emplace_back(plain_memory(bytes)).data());
  }
  for (int rank = 0; rank < size(); ++rank) {
    team(rank).bind({.own = addresses[static_cast<size_t>(rank)],
                     .bytes = bytes,
                     .addresses = addresses,
                     .owner = owner_});
  }
  return addresses;
}

std::string Case::text() const {
  return fmt::format("kind {} type {} reduction {} root {} count {} bound {:x} offset {} splits {}",
                     static_cast<int>(kind), static_cast<int>(type), static_cast<int>(reduction),
                     root, count, bound_ranks, offset, splits);
}

struct CaseRunner::Memory {
  base::Mapping ordinary;
  base::Mapping output;
  std::byte* bound = nullptr;
};

CaseRunner::CaseRunner(int size, Limits limits, Cores cores) : limits_(limits), team_(size, cores) {
  const size_t buffer_bytes = limits.input_bytes + kMaxOffsetBytes + kGuardBytes;
  const std::vector<std::byte*> bound = team_.bind(buffer_bytes);
  for (std::byte* address : bound) {
    memory_.push_back(
        {plain_memory(buffer_bytes), plain_memory(limits.output_bytes + kGuardBytes), address});
  }
}

CaseRunner::~CaseRunner() = default;

size_t CaseRunner::input_bytes(int rank, const Case& item) const {
  const size_t payload = item.count * element_bytes(item.type);
  switch (item.kind) {
    case Kind::ReduceScatter:
      return payload * static_cast<size_t>(team_.size());
    case Kind::AllToAll: {
      size_t elements = 0;
      for (const int64_t part : item.splits[static_cast<size_t>(rank)]) {
        elements += static_cast<size_t>(part);
      }
      return elements * element_bytes(item.type);
    }
    default:
      return payload;
  }
}

size_t CaseRunner::output_bytes(int rank, const Case& item) const {
  const size_t payload = item.count * element_bytes(item.type);
  switch (item.kind) {
    case Kind::AllGather:
      return payload * static_cast<size_t>(team_.size());
    case Kind::ReduceScatter:
      return payload;
    case Kind::AllToAll: {
      size_t elements = 0;
      for (const auto& row : item.splits) {
        elements += static_cast<size_t>(row[static_cast<size_t>(rank)]);
      }
      return elements * element_bytes(item.type);
    }
    default:
      return 0;
  }
}

bool CaseRunner::fits(const Case& item) const {
  bool does = item.offset * element_bytes(item.type) <= kMaxOffsetBytes;
  for (int rank = 0; rank < team_.size(); ++rank) {
    does = does && input_bytes(rank, item) <= limits_.input_bytes &&
           output_bytes(rank, item) <= limits_.output_bytes;
  }
  return does;
}

void CaseRunner::run(const std::vector<Case>& cases) {
  for (const Case& item : cases) {
    ASSERT_TRUE(fits(item)) << item.text();
    auto [oracle, is_new] = oracles_.try_emplace(
        item.type, Oracle::Options{.type = item.type,
                                   .num_ranks = team_.size(),
                                   .bytes = limits_.input_bytes,
                                   .seed = static_cast<uint64_t>(item.type) + 1});
    if (item.kind == Kind::AllReduce || item.kind == Kind::ReduceScatter) {
      oracle->second.prepare(item.reduction);
    }
  }
  team_.run([&](int rank) {
    for (const Case& item : cases) {
      run_case(rank, item);
    }
  });
}

std::byte* CaseRunner::place_input(int rank, const Case& item) {
  Memory& memory = memory_[static_cast<size_t>(rank)];
  const bool is_bound = (item.bound_ranks >> rank & 1) != 0;
  std::byte* const input =
      (is_bound ? memory.bound : memory.ordinary.data()) + item.offset * element_bytes(item.type);
  const size_t bytes = input_bytes(rank, item);
  if (item.kind == Kind::Broadcast && rank != item.root) {
    std::fill_n(input, bytes, kScribble);
  } else if (bytes > 0) {
    std::memcpy(input, oracles_.at(item.type).input(rank), bytes);
  }
  std::fill_n(input + bytes, kGuardBytes, kGuard);
  return input;
}

Task CaseRunner::task_of(int rank, const Case& item, std::byte* input) {
  const bool in_place = item.kind == Kind::AllReduce || item.kind == Kind::Broadcast;
  return {.kind = item.kind,
          .type = item.type,
          .reduction = item.reduction,
          .root = item.root,
          .count = item.count,
          .input = input,
          .output = in_place ? input : memory_[static_cast<size_t>(rank)].output.data(),
          .deadline = base::Deadline::after(kCaseTime)};
}

void CaseRunner::run_case(int rank, const Case& item) {
  std::byte* const input = place_input(rank, item);
  Task task = task_of(rank, item, input);
  auto* const output = static_cast<std::byte*>(task.output);
  const size_t bytes = input_bytes(rank, item);
  std::vector<int64_t> from_each;
  if (item.kind == Kind::AllToAll) {
    for (const auto& row : item.splits) {
      from_each.push_back(row[static_cast<size_t>(rank)]);
    }
    task.input_splits = item.splits[static_cast<size_t>(rank)];
    task.output_splits = from_each;
  }
  if (output != input) {
    std::fill_n(output, output_bytes(rank, item), kScribble);
    std::fill_n(output + output_bytes(rank, item), kGuardBytes, kGuard);
  }
  team_.team(rank).run(task);
  EXPECT_TRUE(guard_holds(input + bytes)) << "rank " << rank << ": " << item.text();
  if (output != input) {
    std::fill_n(input, bytes, kScribble);
    EXPECT_TRUE(guard_holds(output + output_bytes(rank, item)))
        << "rank " << rank << ": " << item.text();
  }
  check(rank, item, output);
  if (output == input) {
    std::fill_n(input, bytes, kScribble);
  }
}

void CaseRunner::check(int rank, const Case& item, const std::byte* output) const {
  const Oracle& oracle = oracles_.at(item.type);
  const size_t payload = item.count * element_bytes(item.type);
  bool is_right = true;
  switch (item.kind) {
    case Kind::AllReduce:
      is_right = equal(output, oracle.reduced(item.reduction), payload);
      break;
    case Kind::ReduceScatter:
      is_right = equal(output, oracle.reduced(item.reduction) + static_cast<size_t>(rank) * payload,
                       payload);
      break;
    case Kind::Broadcast:
      is_right = equal(output, oracle.input(item.root), payload);
      break;
    case Kind::AllGather:
      for (int from = 0; from < team_.size(); ++from) {
        is_right = is_right &&
                   equal(output + static_cast<size_t>(from) * payload, oracle.input(from), payload);
      }
      break;
    case Kind::AllToAll:
      check_all_to_all(rank, item, output);
      break;
    case Kind::Barrier:
    case Kind::Bind:
      break;
  }
  EXPECT_TRUE(is_right) << "rank " << rank << " of " << team_.size() << ": " << item.text();
}

void CaseRunner::check_all_to_all(int rank, const Case& item, const std::byte* output) const {
  const size_t element = element_bytes(item.type);
  for (int from = 0; from < team_.size(); ++from) {
    const auto& row = item.splits[static_cast<size_t>(from)];
    size_t begin = 0;
    for (int to = 0; to < rank; ++to) {
      begin += static_cast<size_t>(row[static_cast<size_t>(to)]) * element;
    }
    const size_t bytes = static_cast<size_t>(row[static_cast<size_t>(rank)]) * element;
    EXPECT_TRUE(equal(output, oracles_.at(item.type).input(from) + begin, bytes))
        << "rank " << rank << " from " << from << ": " << item.text();
    output += bytes;
  }
}

std::vector<std::vector<int64_t>> CaseRunner::random_splits(size_t count, uint64_t seed) const {
  const auto num_ranks = static_cast<size_t>(team_.size());
  std::vector<std::vector<int64_t>> splits(num_ranks, std::vector<int64_t>(num_ranks));
  for (size_t from = 0; from < num_ranks; ++from) {
    for (size_t to = 0; to < num_ranks; ++to) {
      const uint64_t random = scramble(seed * 10007 + from * num_ranks + to);
      const bool is_zero = random % 5 == 0;
      const size_t most = count / num_ranks;
      splits[from][to] = is_zero ? 0 : static_cast<int64_t>(most - (random >> 32) % (most / 4 + 1));
    }
  }
  return splits;
}

}  // namespace lockstep::shm::test
