// `lockstep train` and `lockstep eval` on a GPU, as a user types them.
#include <cmath>
#include <fcntl.h>
#include <filesystem>
#include <map>
#include <optional>
#include <poll.h>
#include <signal.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/process/process.h"
#include "base/unique_fd.h"
#include "support/gpu.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

using Arguments = std::vector<std::string>;
using Json = nlohmann::json;

constexpr auto kPatience = std::chrono::seconds(120);

// Beside this program, wherever that was carried.
std::string program() {
  return std::filesystem::path(base::own_program()).parent_path() / "lockstep";
}

Arguments with(Arguments first, const Arguments& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

base::Output run(const Arguments& arguments, std::map<std::string, std::string> env = {}) {
  return base::run_process({.argv = with({program()}, arguments), .env = std::move(env)},
                           base::Deadline::after(kPatience));
}

Json answer(const Arguments& arguments) {
  const base::Output output = run(with(arguments, {"--json"}));
  EXPECT_TRUE(output.status.ok()) << output.status.text() << "\n" << output.err;
  return Json::parse(output.out, nullptr, /*allow_exceptions=*/false);
}

class CudaRun : public testing::Test {
 protected:
  void SetUp() override {
    LOCKSTEP_NEEDS_GPU();
    write("text.txt", [] {
      std::string text;
      for (int i = 0; i < 700; ++i) {
        text += fmt::format("Line {} says {} and {}.\n", i, i * 7 % 31, i % 5);
      }
      return text;
    }());
    write("cats.toml",
          "recipe = \"cats\"\n[data]\nnum_pictures = 80\nheld_out_pictures = 60\n[train]\n"
          "epochs = 6\neval_every = 5\nlog_every = 1\nema_decay = 0.9\nworkers = 1\n");
    write("text.toml",
          "recipe = \"mytransformer\"\n[model]\nhidden_size = 32\nnum_layers = 2\nffn_size = 64\n"
          "max_positions = 64\ndropout = 0.1\n[data]\ntext = \"text.txt\"\nsequence_length = 64\n"
          "[train]\nbatch_size = 16\nmax_steps = 14\nepochs = 9\neval_every = 6\nlog_every = 1\n");
  }

  void write(const std::string& name, const std::string& text) {
    base::write_file_atomically(folder_.at(name), text);
  }

  // A run on the GPU that another one can be compared with bit for bit.
  Arguments train(const std::string& recipe, const std::string& to,
                  const std::string& device = "cuda") {
    return {"train", folder_.at(recipe),         "--device", device,
            "--set", "train.deterministic=true", "--set",    "checkpoint.dir=" + folder_.at(to),
            "--set", "checkpoint.every=2"};
  }

  // Starts it and kills it, program and rank, once it has said that it is at this step.
  void kill_at_step(const Arguments& arguments, int step) {
    const std::string log = folder_.at("killed.txt");
    const base::UniqueFd out = base::open_file(log, O_WRONLY | O_CREAT | O_TRUNC);
    base::Process process(
        {.argv = with({program()}, arguments), .stdout_fd = out.get(), .stderr_fd = out.get()});
    const std::string sign = fmt::format("step {:>4}/", step);
    const base::Deadline deadline = base::Deadline::after(kPatience);
    while (base::read_file(log).find(sign) == std::string::npos) {
      ASSERT_FALSE(process.poll().has_value()) << "it ended early: " << base::read_file(log);
      ASSERT_FALSE(deadline.expired()) << base::read_file(log);
      ::poll(nullptr, 0, 1);
    }
    process.kill(SIGKILL);
    EXPECT_TRUE(process.wait(base::Deadline::after(kPatience)).has_value());
  }

  const test::TempFolder folder_;
};

TEST_F(CudaRun, ARunThatWasKilledEndsWithTheBitsOfOneThatWasNot) {
  for (const std::string recipe : {"cats.toml", "text.toml"}) {
    const Json whole = answer(train(recipe, "whole of " + recipe));
    for (const int step : {3, 8}) {
      kill_at_step(train(recipe, "killed of " + recipe), step);
    }
    const Json resumed = answer(train(recipe, "killed of " + recipe));
    EXPECT_GE(resumed["resumed_at"], 6) << recipe;
    EXPECT_EQ(resumed["parameter_hashes"], whole["parameter_hashes"]) << recipe;
    EXPECT_EQ(resumed["held_out_loss"], whole["held_out_loss"]) << recipe;
  }
}

TEST_F(CudaRun, TheStartLineNamesTheDeviceAndAutoTakesTheGpu) {
  const Arguments recipe = {"train", folder_.at("cats.toml"), "--set", "train.max_steps=1"};
  const base::Output automatic = run(recipe, {{"LOCKSTEP_LOG_LEVEL", "info"}});
  EXPECT_THAT(automatic.out, HasSubstr(", cuda:0\n"));
  EXPECT_THAT(automatic.err, HasSubstr("device: cuda:0, as train.device = \"auto\""));
  const base::Output chosen = run(with(recipe, {"--device", "cpu"}));
  const base::Output forbidden = run(recipe, {{"LOCKSTEP_DEVICE", "cpu"}});
  for (const base::Output* cpu : {&chosen, &forbidden}) {
    EXPECT_TRUE(cpu->status.ok()) << cpu->err;
    EXPECT_THAT(cpu->out, AllOf(HasSubstr("rank 0 of 1"), Not(HasSubstr("cuda"))));
  }
  const base::Output refused =
      run(with(recipe, {"--device", "cuda"}), {{"LOCKSTEP_DEVICE", "cpu"}});
  EXPECT_EQ(refused.status.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("train.device = \"cuda\": LOCKSTEP_DEVICE=cpu forbids it"));
}

TEST_F(CudaRun, FourRanksShareTheGpuWithTheBitsOfOne) {
  const Arguments one = with(train("cats.toml", "one"), {"--shards", "4"});
  const Arguments four =
      with({"run", "--share-gpu", "--no-prefix", "--nproc-per-node", "4", "--", program()},
           with(train("cats.toml", "four"), {"--shards", "4", "--json"}));
  const base::Output output = run(four);
  ASSERT_TRUE(output.status.ok()) << output.err;
  const Json shared = Json::parse(output.out, nullptr, false);
  EXPECT_EQ(shared["ranks"], 4);
  EXPECT_EQ(shared["same_bits"], true);
  EXPECT_EQ(shared["parameter_hashes"][0], answer(one)["parameter_hashes"][0]);
}

TEST_F(CudaRun, EvalJudgesAndWritesAsOnTheCpu) {
  const Json trained = answer(train("text.toml", "runs"));
  const Arguments eval = {"eval", folder_.at("runs"), "--device"};
  const Json cuda = answer(with(eval, {"cuda"})), cpu = answer(with(eval, {"cpu"}));
  EXPECT_NEAR(cuda["loss"].get<double>(), cpu["loss"].get<double>(), 1e-4);
  EXPECT_NEAR(cuda["loss"].get<double>(), trained["held_out_loss"].get<double>(), 1e-4);
  EXPECT_EQ(cuda["counted"], cpu["counted"]);
  const Arguments write = {"--generate", "Line 3 says", "--tokens", "12"};
  EXPECT_THAT(answer(with(with(eval, {"cuda"}), write))["text"].get<std::string>(),
              StartsWith("Line 3 says"));
  const Arguments dice = with(write, {"--temperature", "0.8", "--top-k", "9", "--seed", "3"});
  const Json first = answer(with(with(eval, {"cuda"}), dice));
  EXPECT_EQ(answer(with(with(eval, {"cuda"}), dice)), first);
  const Json exported = answer(with(with(eval, {"cuda"}), {"--export", folder_.at("out.pth")}));
  EXPECT_TRUE(std::filesystem::exists(folder_.at("out.pth"))) << exported;
}

}  // namespace
}  // namespace lockstep
