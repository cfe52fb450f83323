// `lockstep bench ddp` as a user runs it.

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/process/process.h"
#include "support/paths.h"

namespace lockstep {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using Text = std::vector<std::string>;

constexpr auto kPatience = std::chrono::seconds(100);  // only failures take it

base::Output bench(Text arguments) {
  base::ProcessOptions options{.argv = {testing_support::in_build("lockstep"), "bench", "ddp"}};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  return base::run_process(options, base::Deadline::after(kPatience));
}

json bench_json(Text arguments) {
  arguments.emplace_back("--json");
  const base::Output output = bench(std::move(arguments));
  EXPECT_TRUE(output.status.ok()) << output.status.text() << "\n" << output.err;
  EXPECT_EQ(output.err, "");
  return json::parse(output.out);
}

void expect_ratio(const json& answer, const char* name, const char* above, const char* below) {
  const double ratio = answer.at(above).get<double>() / answer.at(below).get<double>();
  EXPECT_NEAR(answer.at(name), ratio, 0.01 * ratio) << name;
}

void expect_sane(const json& answer, size_t steps) {
  EXPECT_EQ(answer.at("steps"), steps);
  for (const char* name : {"bare_ms", "lockstep_ms", "overhead"}) {
    EXPECT_GT(answer.at(name).get<double>(), 0) << name;
  }
  expect_ratio(answer, "overhead", "lockstep_ms", "bare_ms");
  const double lockstep_ms = answer.at("lockstep_ms");
  for (const char* name : {"copy_in_ms", "reduce_ms", "wait_ms"}) {
    EXPECT_GE(answer.at(name).get<double>(), 0) << name;
    EXPECT_LE(answer.at(name).get<double>(), 2 * lockstep_ms) << name;
  }
  EXPECT_TRUE(answer.at("extra_bytes").is_number_integer());
  EXPECT_TRUE(answer.contains("core_roundtrip_ns"));
  EXPECT_EQ(answer.at("raw_ms").at("bare").size(), steps);
  EXPECT_EQ(answer.at("raw_ms").at("lockstep").size(), steps);
}

void expect_peer(const json& answer, size_t steps) {
  EXPECT_EQ(answer.at("peer"), "c10d");
  EXPECT_GT(answer.at("peer_ms").get<double>(), 0);
  expect_ratio(answer, "speedup", "peer_ms", "lockstep_ms");
  expect_ratio(answer, "peer_overhead", "peer_ms", "bare_ms");
  EXPECT_TRUE(answer.at("peer_extra_bytes").is_number_integer());
  EXPECT_EQ(answer.at("raw_ms").at("peer").size(), steps);
}

TEST(BenchDdp, JsonHoldsEveryFigure) {
  const json answer =
      bench_json({"--model", "mlp", "--ranks", "2", "--steps", "5", "--repeats", "2"});
  EXPECT_EQ(answer.at("model"), "mlp");
  EXPECT_EQ(answer.at("ranks"), 2);
  EXPECT_EQ(answer.at("backend"), "shm");
  EXPECT_EQ(answer.at("repeats"), 2);
  EXPECT_EQ(answer.at("gradient_bytes"), 6 * (1024 * 1024 + 1024) * 4);
  expect_sane(answer, 5);
  expect_peer(answer, 5);
}

// Their sums are in different orders, so what the run itself checks is not trivial here.
TEST(BenchDdp, ThreeRanksGetThePeersGradients) {
  const json answer = bench_json({"--model=transformer", "--ranks=3", "--steps=3", "--repeats=1"});
  EXPECT_EQ(answer.at("model"), "transformer");
  EXPECT_EQ(answer.at("gradient_bytes"), 4 * (2 * 3000 * 128 + 3000 + 4 * 198272 + 2 * 128));
  expect_sane(answer, 3);
  expect_peer(answer, 3);
}

// ResNet-18 has buffers, which are broadcast.
TEST(BenchDdp, TheConvnetIsResNet18) {
  const json answer = bench_json({"--model=convnet", "--ranks=2", "--steps=1", "--repeats=1"});
  EXPECT_EQ(answer.at("gradient_bytes"), 4 * 11689512) << "as everywhere";
  expect_sane(answer, 1);
  expect_peer(answer, 1);
}

TEST(BenchDdp, AGroupOfOneIsMeasuredToo) {
  const json answer = bench_json({"--model=transformer", "--ranks=1", "--steps=2", "--repeats=2"});
  EXPECT_EQ(answer.at("ranks"), 1);
  expect_sane(answer, 2);
  expect_peer(answer, 2);
}

TEST(BenchDdp, WithoutAPeerItsFiguresAreNull) {
  const json answer =
      bench_json({"--model=transformer", "--ranks=1", "--steps=2", "--repeats=1", "--peer=none"});
  for (const char* name : {"peer", "peer_ms", "speedup", "peer_overhead", "peer_extra_bytes"}) {
    EXPECT_TRUE(answer.at(name).is_null()) << name;
  }
  EXPECT_FALSE(answer.at("raw_ms").contains("peer"));
  expect_sane(answer, 2);
}

TEST(BenchDdp, TableHasARowPerVariant) {
  const base::Output output =
      bench({"--model=transformer", "--ranks=1", "--steps=2", "--repeats=1"});
  EXPECT_TRUE(output.status.ok()) << output.err;
  for (const char* text :
       {"transformer, 1 rank, 6.3 MB", "\n     bare ", "\n lockstep ", "\n     c10d ", "speedup"}) {
    EXPECT_THAT(output.out, HasSubstr(text));
  }
}

TEST(BenchDdp, HelpNamesTheModels) {
  const base::Output output = bench({"--help"});
  EXPECT_TRUE(output.status.ok()) << output.err;
  EXPECT_THAT(output.out, HasSubstr("{mlp,convnet,transformer}"));
}

TEST(BenchDdp, AMistakeIsOneSentence) {
  const std::pair<Text, const char*> cases[] = {
      {{"--model", "lstm"}, "--model: lstm not in {mlp,convnet,transformer}"},
      {{"--peer", "gloo"}, "--peer: gloo not in {c10d,none}"},
      {{"--ranks", "0"}, "--ranks: Value 0 not in range 1 to 64"},
      {{"--steps", "0"}, "--steps: Value 0 not in range 1 to 1000000"},
      {{"--repeats", "x"}, "--repeats: Value x not in range"},
      {{"--steps", "2"}, "--steps 2 cannot be dealt to --repeats 3"},
      {{"--bytes", "4K"}, "there is no flag --bytes"},
      {{"mlp"}, "no place for \"mlp\""},
  };
  for (const auto& [arguments, sentence] : cases) {
    const base::Output output = bench(arguments);
    EXPECT_EQ(output.status.code, 2) << sentence;
    EXPECT_THAT(output.err, HasSubstr(sentence));
    EXPECT_EQ(std::count(output.err.begin(), output.err.end(), '\n'), 1) << output.err;
    EXPECT_EQ(output.out, "");
  }
}

}  // namespace
}  // namespace lockstep
