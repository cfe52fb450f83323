// Operations on more than 4 GiB: no count, offset or size is cut to 32 bits on its way through a
// team. Beyond 4 GiB the data are others than at the same place modulo 2^32.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "shm/large_memory.h"
#include "shm/thread_team.h"

namespace lockstep::shm::test {
namespace {

constexpr int kRanks = 2;
constexpr size_t kHalf = kFourGiB / 2;
constexpr size_t kBeyond = 1000;  // elements beyond a border
constexpr size_t kPerFloat = sizeof(float);

// Never 0, which is what nobody has written; of no period that divides a power of two.
uint8_t wave(size_t i, int rank) {
  return static_cast<uint8_t>(1 + (i * 7 + i / 251 + static_cast<size_t>(rank) * 83) % 241);
}
float number(size_t i, int rank) {
  return static_cast<float>(1 + (i * 37 + static_cast<size_t>(rank) * 491) % 1009);
}

struct Place {
  uint8_t* bytes = nullptr;
  float* floats = nullptr;
  explicit Place(std::byte* place)
      : bytes(reinterpret_cast<uint8_t*>(place)), floats(reinterpret_cast<float*>(place)) {}
};

// The repeated part is wave(i, rank), the part beyond 4 GiB wave(i + 5, rank).
void fill_bytes(const LargeMemory& memory, int rank) {
  for (size_t i = 0; i < kPieceBytes; ++i) {
    Place(memory.data()).bytes[i] = wave(i, rank);
  }
  for (size_t i = 0; i < kTailBytes; ++i) {
    Place(memory.tail()).bytes[i] = wave(i + 5, rank);
  }
}
void fill_floats(const LargeMemory& memory, int rank) {
  for (size_t i = 0; i < kPieceBytes / kPerFloat; ++i) {
    Place(memory.data()).floats[i] = number(i, rank);
  }
  for (size_t i = 0; i < kTailBytes / kPerFloat; ++i) {
    Place(memory.tail()).floats[i] = number(i + 5, rank);
  }
}

// The first of `count` values that is not what it must be; `count` if there is none.
template <typename Value, typename Expected>
size_t first_wrong(const Value* values, size_t count, Expected expected) {
  size_t i = 0;
  while (i < count && values[i] == expected(i)) {
    ++i;
  }
  return i;
}

class LargeTeam : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!is_long()) {
      GTEST_SKIP() << "LOCKSTEP_LONG_TESTS=1 moves 40 GB";
    }
  }

  // What is in the memories afterwards is known to all ranks.
  void bind(std::span<const LargeMemory> memories) {
    for (int rank = 0; rank < kRanks; ++rank) {
      team_.team(rank).bind({.own = memories[static_cast<size_t>(rank)].data(),
                             .bytes = LargeMemory::bytes(),
                             .addresses = {memories[0].data(), memories[1].data()},
                             .owner = owner_});
    }
  }

  std::shared_ptr<int> owner_ = std::make_shared<int>();
  ThreadTeam team_{kRanks, Cores::Enough};
};

// The greatest of two numbers stays what it is if it is worked out again at each place that the
// memory repeats.
TEST_F(LargeTeam, AllReduceOfOrdinaryAndOfBoundMemory) {
  for (const bool is_bound : {false, true}) {
    SCOPED_TRACE(is_bound ? "bound" : "ordinary");
    const std::array<LargeMemory, kRanks> memories;
    if (is_bound) {
      bind(memories);
    }
    const size_t tail = kTailBytes / kPerFloat;
    for (int rank = 0; rank < kRanks; ++rank) {
      fill_floats(memories[static_cast<size_t>(rank)], rank);
    }
    team_.run([&](int rank) {
      std::byte* const data = memories[static_cast<size_t>(rank)].data();
      team_.team(rank).run({.kind = Kind::AllReduce,
                            .type = DataType::Float32,
                            .reduction = Reduction::Max,
                            .count = LargeMemory::bytes() / kPerFloat - 1,
                            .input = data,
                            .output = data});
    });
    for (int rank = 0; rank < kRanks; ++rank) {
      const LargeMemory& memory = memories[static_cast<size_t>(rank)];
      const auto greatest = [](size_t i) { return std::max(number(i, 0), number(i, 1)); };
      EXPECT_EQ(first_wrong(Place(memory.data()).floats, kPieceBytes / kPerFloat, greatest),
                kPieceBytes / kPerFloat);
      EXPECT_EQ(first_wrong(Place(memory.tail()).floats, tail - 1,
                            [&](size_t i) { return greatest(i + 5); }),
                tail - 1)
          << "beyond 4 GiB";
      EXPECT_EQ(Place(memory.tail()).floats[tail - 1], number(tail - 1 + 5, rank))
          << "one too many";
    }
  }
}

TEST_F(LargeTeam, Broadcast) {
  for (const bool is_bound : {false, true}) {
    SCOPED_TRACE(is_bound ? "bound" : "ordinary");
    const std::array<LargeMemory, kRanks> memories;
    if (is_bound) {
      bind(memories);
    }
    fill_bytes(memories[1], 1);
    team_.run([&](int rank) {
      std::byte* const data = memories[static_cast<size_t>(rank)].data();
      team_.team(rank).run({.kind = Kind::Broadcast,
                            .type = DataType::UInt8,
                            .root = 1,
                            .count = LargeMemory::bytes() - 1,
                            .input = data,
                            .output = data});
    });
    EXPECT_EQ(first_wrong(Place(memories[0].data()).bytes, kPieceBytes,
                          [](size_t i) { return wave(i, 1); }),
              kPieceBytes);
    EXPECT_EQ(first_wrong(Place(memories[0].tail()).bytes, kTailBytes - 1,
                          [](size_t i) { return wave(i + 5, 1); }),
              kTailBytes - 1)
        << "beyond 4 GiB";
    EXPECT_EQ(Place(memories[0].tail()).bytes[kTailBytes - 1], 0) << "one too many";
  }
}

// Two inputs that follow each other in one long wave, so that the output repeats as its memory
// does.
TEST_F(LargeTeam, AllGather) {
  constexpr size_t kCount = kHalf + kBeyond;
  const std::array<LargeMemory, kRanks> inputs, outputs;
  for (int rank = 0; rank < kRanks; ++rank) {
    for (size_t i = 0; i < kPieceBytes; ++i) {
      const size_t place = (i + static_cast<size_t>(rank) * kCount) % kPieceBytes;
      Place(inputs[static_cast<size_t>(rank)].data()).bytes[i] = wave(place, 0);
    }
  }
  team_.run([&](int rank) {
    team_.team(rank).run({.kind = Kind::AllGather,
                          .type = DataType::UInt8,
                          .count = kCount,
                          .input = inputs[static_cast<size_t>(rank)].data(),
                          .output = outputs[static_cast<size_t>(rank)].data()});
  });
  const auto expected = [](size_t i) { return wave(i, 0); };
  for (const LargeMemory& output : outputs) {
    EXPECT_EQ(first_wrong(Place(output.data()).bytes, kPieceBytes, expected), kPieceBytes);
    EXPECT_EQ(first_wrong(Place(output.tail()).bytes, 2 * kBeyond, expected), 2 * kBeyond)
        << "beyond 4 GiB";
    EXPECT_EQ(Place(output.tail()).bytes[2 * kBeyond], 0) << "one too many";
  }
}

// Each rank's part begins or ends beyond 4 GiB of the inputs.
TEST_F(LargeTeam, ReduceScatter) {
  constexpr size_t kCount = kHalf + kBeyond;
  const std::array<LargeMemory, kRanks> inputs;
  std::array<base::Mapping, kRanks> outputs;
  for (int rank = 0; rank < kRanks; ++rank) {
    fill_bytes(inputs[static_cast<size_t>(rank)], rank);
    outputs[static_cast<size_t>(rank)] =
        base::Mapping(-1, kCount + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE);
  }
  team_.run([&](int rank) {
    team_.team(rank).run({.kind = Kind::ReduceScatter,
                          .type = DataType::UInt8,
                          .reduction = Reduction::Max,
                          .count = kCount,
                          .input = inputs[static_cast<size_t>(rank)].data(),
                          .output = outputs[static_cast<size_t>(rank)].data()});
  });
  const auto greatest = [](size_t place) -> uint8_t {
    const size_t i = place < kFourGiB ? place % kPieceBytes : place - kFourGiB + 5;
    return std::max(wave(i, 0), wave(i, 1));
  };
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto* const output = Place(outputs[static_cast<size_t>(rank)].data()).bytes;
    const size_t begin = static_cast<size_t>(rank) * kCount;
    const auto expect_right = [&](size_t first, size_t count) {
      EXPECT_EQ(
          first_wrong(output + first, count, [&](size_t i) { return greatest(begin + first + i); }),
          count)
          << "rank " << rank << " from " << first;
    };
    expect_right(0, kPieceBytes);
    expect_right(kHalf - kPieceBytes, kPieceBytes + kBeyond);  // beyond 4 GiB, of rank 1
    EXPECT_EQ(output[kCount], 0) << "one too many";
  }
}

// 4 GiB stay with rank 0; behind them, one part goes to rank 1 and one comes from there.
TEST_F(LargeTeam, AllToAll) {
  constexpr size_t kMore = kBeyond / 2;
  const std::array<LargeMemory, kRanks> inputs, outputs;
  const std::array<std::array<int64_t, kRanks>, kRanks> sent{
      {{static_cast<int64_t>(kFourGiB), kBeyond}, {kBeyond, kMore}}};
  for (int rank = 0; rank < kRanks; ++rank) {
    fill_bytes(inputs[static_cast<size_t>(rank)], rank);
  }
  team_.run([&](int rank) {
    const auto own = static_cast<size_t>(rank);
    const std::array<int64_t, kRanks> received{sent[0][own], sent[1][own]};
    team_.team(rank).run({.kind = Kind::AllToAll,
                          .type = DataType::UInt8,
                          .input = inputs[own].data(),
                          .output = outputs[own].data(),
                          .input_splits = sent[own],
                          .output_splits = received});
  });
  const auto of_rank_0 = [](size_t i) { return wave(i, 0); };
  const auto of_rank_1 = [](size_t i) { return wave(i, 1); };
  EXPECT_EQ(first_wrong(Place(outputs[0].data()).bytes, kPieceBytes, of_rank_0), kPieceBytes);
  EXPECT_EQ(first_wrong(Place(outputs[0].tail()).bytes, kBeyond, of_rank_1), kBeyond);
  EXPECT_EQ(Place(outputs[0].tail()).bytes[kBeyond], 0) << "one too many";
  EXPECT_EQ(first_wrong(Place(outputs[1].data()).bytes, kBeyond,
                        [&](size_t i) { return of_rank_0(i + 5); }),
            kBeyond);
  EXPECT_EQ(first_wrong(Place(outputs[1].data()).bytes + kBeyond, kMore,
                        [&](size_t i) { return of_rank_1(kBeyond + i); }),
            kMore);
  EXPECT_EQ(Place(outputs[1].data()).bytes[kBeyond + kMore], 0) << "one too many";
}

}  // namespace
}  // namespace lockstep::shm::test
