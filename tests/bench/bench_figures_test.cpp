// What `lockstep bench` makes of its raw times, and how it finds a wrong result.

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench/allreduce/bench_pattern.h"
#include "bench/allreduce/bench_result.h"

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
                         .from_first_us = {{7}, {8, 9, 10}, {20}},
                         .operations_us = {5, 1, 2, 3, 4},
                         .batch = 1};
  EXPECT_EQ(times.median_us(), 3);
  EXPECT_EQ(times.median_from_first_us(), 9);
}

TEST(BenchFigures, PercentilesAreOfSingleOperations) {
  BenchTimes times;
  EXPECT_EQ(times.percentile_us(90), 0);
  for (int i = 200; i > 0; --i) {
    times.operations_us.push_back(i);
  }
  EXPECT_EQ(times.percentile_us(90), 180);
  EXPECT_EQ(times.percentile_us(99), 198);
  times.operations_us = {5, 1, 2, 3, 4};
  EXPECT_EQ(times.percentile_us(90), 5);
  EXPECT_EQ(times.percentile_us(0), 1);
}

// Two operations: the ranks come between 10 and 14, have the first one at 20 and the second at 30.
TEST(BenchFigures, ABatchIsTimedByBothClocks) {
  BenchTimes times;
  times.batch = 2;
  times.begin_repeat();
  times.add({.first_us = 10, .last_us = {14, 20, 30}});
  EXPECT_EQ(times.batches_us, (std::vector<std::vector<double>>{{8}}));
  EXPECT_EQ(times.from_first_us, (std::vector<std::vector<double>>{{10}}));
  EXPECT_EQ(times.operations_us, (std::vector<double>{6, 10}));
}

BenchTimes times_of(double us, double from_first_us) {
  return {.batches_us = {{us}}, .from_first_us = {{from_first_us}}, .operations_us = {us}};
}

nlohmann::json json_of(const BenchPlan& plan, const BenchResult& result) {
  return nlohmann::json::parse(bench_json(plan, {.num_ranks = 4}, {result}));
}

TEST(BenchFigures, AreHeldAgainstTheFirstPeerAndTheBest) {
  const BenchResult result{.bytes = 4096,
                           .lockstep = times_of(10, 12),
                           .staged = times_of(20, 40),
                           .memory_pass = times_of(3, 4),
                           .peers = {{.name = "gloo", .times = times_of(100, 120)},
                                     {.name = "mpich", .times = times_of(60, 80)},
                                     {.name = "openmpi", .times = times_of(50, 90)}}};
  const BenchPlan plan{.peers = {"gloo", "mpich", "openmpi"},
                       .missing = {{"intelmpi", "no mpiexec of it is in PATH"}}};
  const auto json = json_of(plan, result);
  EXPECT_EQ(json.at("peer"), "gloo");
  EXPECT_EQ(json.at("missing").at("intelmpi"), "no mpiexec of it is in PATH");
  const auto& figures = json.at("results").at(0);
  const std::pair<const char*, double> expected[] = {
      {"peer_us", 100},
      {"speedup", 10},
      {"staged_speedup", 5},
      {"staged_from_first_us", 40},
      {"staged_from_first_speedup", 3},
      {"speedup_over_best", 5},
      {"staged_speedup_over_best", 2.5},
      {"staged_from_first_speedup_over_best", 2},  // by this clock the best is another peer
      {"memory_pass_us", 4},
      {"memory_passes", 3}};
  for (const auto& [name, value] : expected) {
    EXPECT_EQ(figures.at(name), value) << name;
  }
  EXPECT_EQ(figures.at("best_peer"), "openmpi");
  EXPECT_EQ(figures.at("peers"), (nlohmann::json{{"gloo", 100}, {"mpich", 60}, {"openmpi", 50}}));
  EXPECT_EQ(figures.at("raw_us").at("peers").at("mpich"), nlohmann::json::array({60}));
  EXPECT_FALSE(figures.contains("fraction_of_limit"));
}

TEST(BenchFigures, WithoutAPeerNameNone) {
  const BenchResult result{.bytes = 4096,
                           .lockstep = times_of(10, 12),
                           .staged = times_of(20, 40),
                           .memory_pass = times_of(3, 4)};
  const auto json = json_of({}, result);
  EXPECT_TRUE(json.at("peer").is_null());
  const auto& figures = json.at("results").at(0);
  for (const char* name : {"peers", "peer_us", "speedup", "best_peer", "speedup_over_best"}) {
    EXPECT_FALSE(figures.contains(name)) << name;
  }
}

TEST(BenchTable, HasAColumnPerPeerAndTheBestOnesSpeedups) {
  const BenchPlan plan{.peers = {"gloo", "openmpi"}};
  const BenchResult result{.bytes = 1 << 20,
                           .lockstep = times_of(10, 12),
                           .staged = times_of(20, 40),
                           .memory_pass = times_of(3, 4),
                           .peers = {{.name = "gloo", .times = times_of(100, 120)},
                                     {.name = "openmpi", .times = times_of(50, 90)}}};
  const std::string header = bench_header(plan, {.num_ranks = 4, .backend = "shm"});
  EXPECT_LT(header.find("gloo"), header.find("openmpi"));
  EXPECT_EQ(header.find("limit"), std::string::npos);
  const std::string row = bench_row(plan, {.num_ranks = 4}, result);
  EXPECT_NE(row.find(" 100.0 "), std::string::npos) << row;
  EXPECT_NE(row.find(" 5.00x    2.50x"), std::string::npos) << row;
}

TEST(BenchFigures, BusBandwidthIsThatOfNcclTests) {
  BenchResult result{.bytes = 1'000'000};
  for (BenchTimes* each : {&result.lockstep, &result.staged, &result.memory_pass}) {
    *each = times_of(1000, 1000);
  }
  const auto bus = [&](const char* operation) {
    const auto json = json_of({.operation = operation}, result);
    return json["results"][0]["busbw_gb_per_s"].get<double>();
  };
  EXPECT_EQ(bus("allreduce"), 1.5);
  EXPECT_EQ(bus("allgather"), 0.75);
  EXPECT_EQ(bus("reducescatter"), 0.75);
  EXPECT_EQ(bus("broadcast"), 1);
}

}  // namespace
}  // namespace lockstep
