// What a trained model is worth, says and knows: `lockstep eval`, and the recipes it stands on.
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/unique_fd.h"
#include "support/paths.h"
#include "support/service.h"
#include "support/small_disk.h"
#include "support/temp_folder.h"
#include "train/program.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

using test::Arguments;
using test::with;

const std::string kProgram = testing_support::in_build("lockstep");

// Recipes name their data from there.
base::Output run(const Arguments& argv) {
  return test::run_in(testing_support::in_tree(""), argv);
}

nlohmann::json answer(const Arguments& argv) {
  return test::answer_in(testing_support::in_tree(""), argv);
}

// A tiny language model of bytes, in a second.
Arguments tiny_language(const std::string& recipe, const std::string& folder) {
  return {"train",
          "recipes/" + recipe + ".toml",
          "--json",
          "--set",
          "model.hidden_size=16",
          "--set",
          "model.num_layers=1",
          "--set",
          "model.ffn_size=32",
          "--set",
          "data.sequence_length=32",
          "--set",
          "train.max_steps=30",
          "--set",
          "train.eval_every=1000",
          "--set",
          "checkpoint.dir=" + folder};
}

TEST(EvalRun, FindsWhatTheTrainingFound) {
  const test::TempFolder folder;
  const auto trained = answer({"train", "recipes/cats.toml", "--json", "--set", "train.epochs=3",
                               "--set", "data.num_pictures=80", "--set", "train.ema_decay=0.5",
                               "--set", "checkpoint.dir=" + folder.at("runs")});
  const auto judged = answer({"eval", folder.at("runs"), "--json"});
  EXPECT_EQ(judged["accuracy"], trained["held_out_accuracy"]);
  EXPECT_NEAR(judged["loss"], trained["held_out_loss"], 1e-6);
  EXPECT_EQ(judged["step"], 6);
  EXPECT_EQ(judged["counted"], 400);
  const auto raw = answer({"eval", folder.at("runs"), "--raw", "--json"});
  EXPECT_NE(raw["loss"], judged["loss"]) << "the last step's parameters, not their average";
  const auto others =
      answer({"eval", folder.at("runs"), "--json", "--set", "data.held_out_pictures=30"});
  EXPECT_EQ(others["counted"], 30);
}

TEST(EvalRun, LanguageModelsWrite) {
  for (const char* recipe : {"mytransformer", "gpt2"}) {
    const test::TempFolder folder;
    const auto trained = answer(tiny_language(recipe, folder.at("runs")));
    const auto judged = answer({"eval", folder.at("runs"), "--json"});
    EXPECT_NEAR(judged["loss"], trained["held_out_loss"], 1e-5);
    EXPECT_NEAR(judged["perplexity"], std::exp(judged["loss"].get<double>()), 1e-6);
    const Arguments write = {"eval", folder.at("runs"), "--generate", "Every rank", "--tokens",
                             "20",   "--json"};
    const auto greedy = answer(write);
    EXPECT_THAT(greedy["text"].get<std::string>(), StartsWith("Every rank"));
    EXPECT_EQ(answer(write), greedy);
    const Arguments dice = {"--temperature", "1", "--top-k", "50", "--top-p", "0.95", "--seed"};
    const auto first = answer(with(with(write, dice), {"1"}));
    EXPECT_EQ(answer(with(with(write, dice), {"1"})), first) << "the seed decides";
    EXPECT_NE(answer(with(with(write, dice), {"2"})), first);
  }
}

TEST(EvalRun, ExportsWhatOthersRead) {
  const test::TempFolder folder;
  answer(tiny_language("gpt2", folder.at("runs")));
  for (const char* name : {"model.pth", "model.safetensors"}) {
    answer({"eval", folder.at("runs"), "--export", folder.at(name), "--json"});
  }
  const base::Output same =
      run({"inspect", "--diff", folder.at("model.pth"), folder.at("model.safetensors")});
  EXPECT_TRUE(same.status.ok()) << same.out << same.err;
  answer({"eval", folder.at("runs"), "--export", folder.at("hub"), "--json"});
  EXPECT_THAT(base::read_file(folder.at("hub/config.json")), HasSubstr("GPT2LMHeadModel"));
  // What was exported is a beginning for another run.
  const auto again = answer(with(tiny_language("gpt2", folder.at("more")),
                                 {"--set", "model.pretrained=" + folder.at("hub"), "--set",
                                  "train.max_steps=1", "--set", "train.lr=0"}));
  EXPECT_NEAR(again["held_out_loss"], answer({"eval", folder.at("runs"), "--json"})["loss"], 1e-5);
}

TEST(EvalRun, AnExportToAFullDiskIsOneSentenceAndLeavesNothing) {
  LOCKSTEP_NEEDS("namespaces", test::disk_refusal());
  const test::TempFolder folder;
  std::filesystem::create_directory(folder.at("disk"));
  answer(with(tiny_language("gpt2", folder.at("runs")), {"--set", "train.max_steps=1"}));
  for (const char* name : {"model.pth", "model.safetensors", "hub"}) {
    SCOPED_TRACE(name);
    const std::string path = folder.at("disk") + "/" + name;
    const base::Output output = base::run_process(
        {.argv = test::on_disk({.folder = folder.at("disk"), .size = "16k"},
                               {kProgram, "eval", folder.at("runs"), "--export", path})},
        base::Deadline::after(std::chrono::seconds(60)));
    EXPECT_EQ(output.status.code, 1) << output.err;
    EXPECT_THAT(output.err, AllOf(StartsWith("lockstep eval: "), HasSubstr(path),
                                  HasSubstr("No space left on device")));
    EXPECT_EQ(std::count(output.err.begin(), output.err.end(), '\n'), 1) << output.err;
    EXPECT_TRUE(output.out.ends_with("left:\n")) << output.out;
  }
}

TEST(EvalRun, AnExportWhoseNameHasADotIsTakenForAFileUnlessItEndsWithASlash) {
  const test::TempFolder folder;
  answer(with(tiny_language("gpt2", folder.at("runs")), {"--set", "train.max_steps=1"}));
  const std::string path = folder.at("gpt2.v1.tuned");
  const base::Output refused = run({"eval", folder.at("runs"), "--export", path});
  EXPECT_EQ(refused.status.code, 2);
  EXPECT_THAT(refused.err,
              AllOf(HasSubstr("\".tuned\" is not the end of a file"), HasSubstr(path + "/")));
  EXPECT_FALSE(std::filesystem::exists(path));
  answer({"eval", folder.at("runs"), "--export", path + "/", "--json"});
  EXPECT_TRUE(std::filesystem::exists(path + "/config.json"));
}

TEST(EvalRun, ABertThatWasPublishedLearnsToLabel) {
  LOCKSTEP_NEEDS("minilm", test::no_minilm());
  const test::TempFolder folder;
  const auto trained =
      answer({"run", "--no-prefix", "--nproc-per-node", "2", "--", kProgram, "train",
              "recipes/bert-classify.toml", "--json", "--set", "train.epochs=2", "--set",
              "train.lr=2e-4", "--set", "checkpoint.dir=" + folder.at("runs")});
  EXPECT_EQ(trained["same_bits"], true);
  EXPECT_EQ(trained["held_out_texts"], 80);
  EXPECT_GE(trained["held_out_accuracy"], 0.7) << "the majority class has about half";
  const auto vector = answer({"eval", folder.at("runs"), "--embed", "a fine film", "--json"});
  double length = 0;
  for (const double number : vector["embedding"]) {
    length += number * number;
  }
  EXPECT_EQ(vector["embedding"].size(), 384u);
  EXPECT_NEAR(length, 1, 1e-4);
}

TEST(EvalRun, AMistakeIsOneSentence) {
  const test::TempFolder folder;
  answer(tiny_language("mytransformer", folder.at("runs")));
  const auto refuses = [&](const Arguments& arguments, int code, const char* reason) {
    const base::Output output = run(with({"eval"}, arguments));
    EXPECT_EQ(output.status.code, code) << output.err;
    EXPECT_THAT(output.err, AllOf(StartsWith("lockstep eval: "), HasSubstr(reason)));
  };
  refuses({}, 2, "CHECKPOINT is required");
  refuses({folder.at("nothing")}, 2, "there is no checkpoint in");
  refuses({folder.at("runs"), "--embed", "x"}, 2, "--embed is for bert-classify");
  refuses({folder.at("runs"), "--generate", ""}, 2, "the prompt is empty");
  refuses({folder.at("runs"), "--generate", "x", "--top-p", "2"}, 2, "top-p 2");
  refuses({folder.at("runs"), "--set", "data.held_out_share=0"}, 2, "holds no data out");
  refuses({folder.at("runs"), "--set", "data.txt=a"}, 2, "did you mean data.text?");
}

}  // namespace
}  // namespace lockstep
