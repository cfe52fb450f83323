// Programs that use no GPU do not load the driver, nor, after it, libtorch's CUDA library, which
// would take longer than they do. A library that stands in for the driver tells who loads it.

#include <filesystem>

#include <gtest/gtest.h>

#include "base/process/process.h"
#include "support/paths.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr auto kPatience = std::chrono::seconds(60);  // only failures take it

const std::string kRecipe = testing_support::in_tree("recipes/cats.toml");

using Line = std::vector<std::string>;

Line with(Line line, const Line& more) {
  line.insert(line.end(), more.begin(), more.end());
  return line;
}

// A training of one step.
Line train(const Line& more = {}) {
  return with({"train", kRecipe, "--set", "train.epochs=1", "--set", "train.batch_size=8", "--set",
               "data.num_pictures=8", "--set", "data.held_out_pictures=8"},
              more);
}

class LeavesGpuAlone : public ::testing::Test {
 protected:
  // Whether the driver was loaded by a process of `lockstep LINE`, which must succeed.
  bool loads_driver(const Line& line, const std::string& device = "auto") {
    const fs::path mark = fs::path(folder_.path()) / "loaded";
    fs::remove(mark);
    base::ProcessOptions options{
        .argv = with({testing_support::in_build("lockstep")}, line),
        .env = {{"LD_LIBRARY_PATH", testing_support::in_build("fake_driver")},
                {"LOCKSTEP_TEST_DRIVER_LOADED", mark.string()},
                {"LOCKSTEP_DEVICE", device}}};
    const auto output = base::run_process(options, base::Deadline::after(kPatience));
    EXPECT_TRUE(output.status.ok()) << line[0] << ": " << output.status.text() << "\n"
                                    << output.err;
    return fs::exists(mark);
  }

  test::TempFolder folder_;
};

TEST_F(LeavesGpuAlone, TheStandInTells) {
  EXPECT_TRUE(loads_driver(train()));
}

TEST_F(LeavesGpuAlone, CommandsWithoutTensors) {
  const Line lines[] = {{"--help"},           {"--version"},
                        {"run", "--help"},    {"inspect", "--help"},
                        {"doctor", "--help"}, {"train", "--help"},
                        {"eval", "--help"},   {"explain", "--help"},
                        {"bench", "--help"},  {"run", "--nproc-per-node", "2", "--", "true"}};
  for (const Line& line : lines) {
    EXPECT_FALSE(loads_driver(line)) << line.front() << " " << line.back();
  }
}

TEST_F(LeavesGpuAlone, CommandsThatComputeOnTheCpuOnly) {
  EXPECT_FALSE(loads_driver({"explain", "average"}));
  EXPECT_FALSE(loads_driver(
      {"bench", "allreduce", "--ranks", "2", "--bytes", "4K", "--repeats", "1", "--peer", "none"}));
  EXPECT_FALSE(loads_driver({"bench", "ddp", "--model", "mlp", "--ranks", "2", "--steps", "1",
                             "--repeats", "1", "--peer", "none"}));
}

TEST_F(LeavesGpuAlone, WhoeverAsksForTheCpu) {
  const std::string saved = folder_.path() + "/run";
  EXPECT_FALSE(loads_driver(train({"--set", "checkpoint.dir=" + saved}), "cpu"));
  EXPECT_FALSE(loads_driver({"eval", saved}, "cpu"));
  EXPECT_FALSE(loads_driver({"bench", "gpu-parity", "--device", "cpu", "--ranks", "1", "--models",
                             "convnet", "--steps", "1"}));
}

// One sentence with both versions: in the log where the CPU will do, as an error where it will not.
TEST(ADriver, ThatIsTooOldIsTold) {
  const auto run = [](const char* device, const char* version) {
    return base::run_process({.argv = with({testing_support::in_build("lockstep")},
                                           train({"--set", std::string("train.device=") + device})),
                              .env = {{"LD_LIBRARY_PATH", testing_support::in_build("fake_driver")},
                                      {"LOCKSTEP_TEST_DRIVER_CUDA", version},
                                      {"LOCKSTEP_DEVICE", "auto"}}},
                             base::Deadline::after(kPatience));
  };
  const std::string sentence =
      "the NVIDIA driver runs CUDA up to 12.4, and this libtorch needs 13.0: install driver 580";
  const base::Output cpu = run("auto", "12040");
  EXPECT_TRUE(cpu.status.ok()) << cpu.err;
  EXPECT_NE(cpu.err.find("WARN"), std::string::npos) << cpu.err;
  EXPECT_NE(cpu.err.find(sentence), std::string::npos) << cpu.err;
  const base::Output cuda = run("cuda", "12040");
  EXPECT_EQ(cuda.status.code, 2) << cuda.err;
  EXPECT_NE(cuda.err.find(sentence), std::string::npos) << cuda.err;
  EXPECT_EQ(run("auto", "13000").err.find("runs CUDA up to"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
