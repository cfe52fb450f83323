// What `lockstep bench` makes of its raw times, and how it finds a wrong result.

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench_pattern.h"
#include "bench_result.h"

namespace lockstep {
namespace {

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};

TEST(BenchPattern, FindsASingleWrongElement) {
  for (const at::ScalarType type : kTypes) {
    const size_t element = c10::elementSize(type);
    for (const size_t count : {1u, 7u, 64u, 1001u}) {
      std::vector<std::byte> memory(count * element);
      const BenchSpan span{.data = memory.data(), .bytes = memory.size(), .type = type, .first = 3};
      const BenchValues values = bench_sum(64, 5);
      write_pattern(span, values);
      EXPECT_EQ(find_mistake(span, values, CheckExtent::All), "");
      memory[(count - 1) * element + element - 1] ^= std::byte{1};
      EXPECT_NE(find_mistake(span, values, CheckExtent::All), "");
      EXPECT_NE(find_mistake(span, values, CheckExtent::Sample), "") << "the end is in the sample";
    }
  }
}

TEST(BenchPattern, IsAnotherForEachOperation) {
  for (const int ranks : {2, 3, 4, 8}) {
    for (uint64_t salt = 0; salt < 200; ++salt) {
      EXPECT_NE(bench_sum(ranks, salt), bench_sum(ranks, salt + 1)) << ranks << " " << salt;
    }
  }
}

TEST(BenchPattern, NamesElementAndValues) {
  std::vector<float> memory(20);
  const BenchSpan span{.data = reinterpret_cast<std::byte*>(memory.data()), .bytes = 80};
  write_pattern(span, {0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(memory[17], 1.0f);
  memory[17] = 9.5f;
  EXPECT_EQ(find_mistake(span, {0, 1, 2, 3, 4, 5, 6, 7}, CheckExtent::All),
            "element 17 is 9.5, not 1");
}

TEST(BenchFigures, AreMediansOfMedians) {
  const BenchTimes times{.batches_us = {{1, 2, 30}, {4, 5}, {100, 3, 3}},
                         .operations_us = {5, 1, 2, 3, 4},
                         .batch = 1};
  EXPECT_EQ(times.median_us(), 3);
  EXPECT_EQ(times.p99_us(), 5);
  EXPECT_EQ(times.raw_us().size(), 8u);
}

TEST(BenchFigures, BusBandwidthIsThatOfNcclTests) {
  BenchResult result{.bytes = 1'000'000};
  for (BenchTimes* each : {&result.lockstep, &result.staged, &result.limit}) {
    *each = {.batches_us = {{1000}}, .operations_us = {1000}, .batch = 1};
  }
  const auto bus = [&](BenchOperation operation) {
    const BenchPlan plan{.operation = operation, .has_peer = false};
    const auto json = nlohmann::json::parse(bench_json(plan, {.num_ranks = 4}, {result}));
    return json["results"][0]["busbw_gb_per_s"].get<double>();
  };
  EXPECT_EQ(bus(BenchOperation::AllReduce), 1.5);
  EXPECT_EQ(bus(BenchOperation::AllGather), 0.75);
  EXPECT_EQ(bus(BenchOperation::ReduceScatter), 0.75);
  EXPECT_EQ(bus(BenchOperation::Broadcast), 1);
}

}  // namespace
}  // namespace lockstep
