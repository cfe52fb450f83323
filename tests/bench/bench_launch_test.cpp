// `lockstep bench launch` as a user runs it; its own job needs lockstep-bench.

#include <algorithm>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/job.h"
#include "support/paths.h"

namespace lockstep::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using Text = std::vector<std::string>;

base::Output bench_launch(const Text& arguments, std::map<std::string, std::string> env = {}) {
  Text all{"bench", "launch"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return run_lockstep(all, std::move(env));
}

TEST(BenchLaunch, JsonHoldsEveryFigureAndNullForAPeerThatIsNotThere) {
  const TempFolder path;  // without torchrun, whatever this machine has
  std::filesystem::create_symlink("/bin/echo", path.path() + "/echo");
  const base::Output output = bench_launch(
      {"--ranks=3", "--repeats=1", "--peer=torchrun", "--json"}, {{"PATH", path.path()}});
  ASSERT_TRUE(output.status.ok()) << output.err;
  EXPECT_THAT(output.err, HasSubstr("there is no torchrun in PATH"));
  EXPECT_EQ(std::count(output.err.begin(), output.err.end(), '\n'), 1) << output.err;
  const json answer = json::parse(output.out);
  EXPECT_EQ(answer.at("ranks"), 3);
  EXPECT_EQ(answer.at("repeats"), 1);
  for (const char* name : {"lockstep_s", "print_only_ms", "death_to_stop_ms", "restart_ms"}) {
    EXPECT_GT(answer.at(name), 0) << name;
  }
  EXPECT_GE(answer.at("restart_ms"), answer.at("death_to_stop_ms"));
  EXPECT_EQ(answer.at("raw_s").at("lockstep").size(), 1u);
  for (const char* name :
       {"peer", "peer_s", "peer_same_binary_s", "speedup", "speedup_same_binary"}) {
    EXPECT_TRUE(answer.at(name).is_null()) << name;
  }
}

// What stands in for torchrun is `lockstep run`, whose flags are the same, with the Python job
// replaced: only the answers count here.
class Standin {
 public:
  // `job`: what a rank does instead of the Python script.
  explicit Standin(const std::string& job)
      : path_(folder_.file("torchrun",
                           "#!/bin/sh\n"
                           "case \"$4\" in\n"
                           "--no-python) exec " +
                               lockstep_program() +
                               " run \"$@\";;\n"
                               "*) exec " +
                               lockstep_program() + " run \"$1\" \"$2\" \"$3\" " + job +
                               ";;\nesac\n",
                           0755)) {}
  const std::string& path() const { return path_; }

 private:
  TempFolder folder_;
  std::string path_;
};

TEST(BenchLaunch, ThePeersJobsAreMeasuredBesideOurs) {
  const Standin peer(testing_support::in_build("lockstep-bench bench launch"));
  const base::Output output = bench_launch({"--ranks=2", "--repeats=1", "--torchrun", peer.path()});
  ASSERT_TRUE(output.status.ok()) << output.err;
  EXPECT_THAT(output.out, HasSubstr("2 ranks, medians of 1\n"));
  EXPECT_THAT(output.out, HasSubstr("  C++, lockstep run "));
  EXPECT_THAT(output.out, HasSubstr("  Python, torchrun "));
  EXPECT_THAT(output.out, HasSubstr("  C++, torchrun --no-python "));
  EXPECT_THAT(output.out, HasSubstr("  a death to the last stop signal "));
  EXPECT_EQ(output.err, "");
}

TEST(BenchLaunch, AWrongResultOfThePeerEndsTheRun) {
  const std::pair<const char*, const char*> cases[] = {
      {"echo 'rank {rank}: 26 steps, loss 9.75'", "and 9.75 under the peer"},
      {"echo 'rank {rank}: 25 steps, loss 0.1'", "a rank printed \"25 steps, loss 0.1\""},
      {"echo nothing", "rank 0 of 2 printed no result"},
      {"sh -c 'exit 7'", "exit code 7"},
  };
  for (const auto& [job, sentence] : cases) {
    const Standin peer(job);
    const base::Output output =
        bench_launch({"--ranks=2", "--repeats=1", "--json", "--torchrun", peer.path()});
    EXPECT_EQ(output.status.code, 1) << job;
    EXPECT_THAT(output.err, HasSubstr(sentence));
    EXPECT_EQ(output.out, "");
  }
}

TEST(BenchLaunch, AMistakeIsOneSentence) {
  const std::pair<Text, const char*> cases[] = {
      {{"--peer", "mpirun"}, "--peer: mpirun not in {torchrun,none}"},
      {{"--torchrun", "/nowhere/torchrun"}, "--torchrun /nowhere/torchrun is no program"},
      {{"--ranks", "1"}, "--ranks: Value 1 not in range 2 to 64"},
      {{"--repeats", "0"}, "--repeats: Value 0 not in range 1 to 1000"},
      {{"--rank", "4"}, "did you mean --ranks?"},
      {{"torchrun"}, "no place for \"torchrun\""},
  };
  for (const auto& [arguments, sentence] : cases) {
    const base::Output output = bench_launch(arguments);
    EXPECT_EQ(output.status.code, 2) << sentence;
    EXPECT_THAT(output.err, HasSubstr(sentence));
    EXPECT_EQ(std::count(output.err.begin(), output.err.end(), '\n'), 1) << output.err;
    EXPECT_EQ(output.out, "");
  }
}

}  // namespace
}  // namespace lockstep::test
