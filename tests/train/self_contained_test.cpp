// A checkpoint is all that its model needs: programs that use one where nothing else is left, and
// one that an older version wrote.
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
#include "support/temp_folder.h"
#include "train/own_data.h"
#include "train/program.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using test::answer_in;
using test::Arguments;
using test::run_in;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const std::string kVersion1 = testing_support::in_tree("tests/train/version1");

// A user's own folder: a recipe, a text and a tokenizer beside it.
void write_run(const test::TempFolder& folder, const std::string& tokenizer) {
  fs::create_directories(folder.at("mine/data"));
  folder.file("mine/data/text.txt", test::text_of_numbers());
  test::write_number_tokenizer(folder, "mine/words");
  folder.file("mine/recipe.toml",
              std::string("recipe = \"gpt2\"\n[model]\nvocab_size = ") +
                  (tokenizer == "bytes" ? "256" : "14") +
                  "\nhidden_size = 16\nnum_layers = 1\n"
                  "num_heads = 2\nffn_size = 32\nmax_positions = 32\n"
                  "[data]\ntext = \"data/text.txt\"\ntokenizer = \"" +
                  tokenizer +
                  "\"\nsequence_length = 32\n[train]\nmax_steps = 6\nbatch_size = 8\n"
                  "threads = 1\nschedule = \"constant\"\neval_every = 1000\n[checkpoint]\ndir = "
                  "\"runs\"\n");
  fs::create_directories(folder.at("elsewhere"));
}

TEST(SelfContained, ACheckpointNeedsNeitherItsDataNorItsTokenizerNorItsFolder) {
  for (const char* tokenizer : {"bytes", "words"}) {
    const test::TempFolder folder;
    write_run(folder, tokenizer);
    answer_in(folder.at("elsewhere"), {"train", "../mine/recipe.toml", "--json"});
    ASSERT_TRUE(fs::exists(folder.at("mine/runs/latest"))) << "beside the recipe, as it says";
    const auto judged = answer_in("/", {"eval", folder.at("mine/runs"), "--json"});
    EXPECT_GT(judged["counted"], 0) << "from any working folder";
    fs::rename(folder.at("mine/runs"), folder.at("kept"));
    fs::remove_all(folder.at("mine"));
    const Arguments write = {"eval", folder.at("kept"), "--generate", "11 1", "--tokens",
                             "5",    "--json"};
    const auto written = answer_in("/", write);
    EXPECT_THAT(written["text"].get<std::string>(), StartsWith("11 1"));
    answer_in("/", {"eval", folder.at("kept"), "--export", folder.at("hub"), "--json"});
    const auto config = nlohmann::json::parse(base::read_file(folder.at("hub/config.json")));
    const bool has_bytes = std::string(tokenizer) == "bytes";
    EXPECT_EQ(config["eos_token_id"], has_bytes ? nlohmann::json() : nlohmann::json(13));
    EXPECT_TRUE(fs::exists(folder.at(has_bytes ? "hub/tokenizer.json" : "hub/merges.txt")));
    EXPECT_TRUE(fs::exists(folder.at("hub/tokenizer_config.json")));
    // What was exported is a beginning, with its tokenizer.
    folder.file("text.txt", test::text_of_numbers());
    const auto more = answer_in(
        folder.path(), {"train", testing_support::in_tree("recipes/gpt2.toml"), "--json", "--set",
                        "model.pretrained=hub", "--set", "data.tokenizer=hub", "--set",
                        "data.text=text.txt", "--set", "data.sequence_length=32", "--set",
                        "train.max_steps=1", "--set", "train.lr=0", "--set", "train.batch_size=8"});
    EXPECT_NEAR(more["held_out_loss"], judged["loss"], 1e-4);
    // What it is judged by must be there, and what it is cannot be changed.
    EXPECT_THAT(run_in("/", {"eval", folder.at("kept")}).err, HasSubstr("mine/data/text.txt"));
    EXPECT_THAT(run_in("/", {"eval", folder.at("kept"), "--set", "model.hidden_size=32"}).err,
                HasSubstr("the model is the checkpoint's own"));
    const auto elsewhere =
        answer_in(folder.path(), {"eval", "kept", "--set", "data.text=text.txt", "--set",
                                  "data.token_file=x.tokens", "--json"});
    EXPECT_NEAR(elsewhere["loss"], judged["loss"], 1e-5);
  }
}

TEST(SelfContained, ATunedBertNeedsThePublishedOneNoMore) {
  LOCKSTEP_NEEDS("minilm", test::no_minilm());
  const test::TempFolder folder;
  fs::create_directory_symlink(testing_support::in_tree(".deps/minilm-0.1.0"), folder.at("minilm"));
  answer_in(folder.path(), {"train", testing_support::in_tree("recipes/bert-classify.toml"),
                            "--json", "--set", "model.pretrained=minilm", "--set",
                            "train.max_steps=1", "--set", "checkpoint.dir=runs", "--set",
                            "train.eval_every=1000", "--set", "data.max_length=16"});
  fs::remove(folder.at("minilm"));
  const base::Output vector =
      run_in("/", {"eval", folder.at("runs"), "--embed", "a fine film", "--json"});
  EXPECT_TRUE(vector.status.ok()) << vector.err;
  EXPECT_EQ(vector.err, "") << "nothing is drawn from a seed";
  EXPECT_EQ(nlohmann::json::parse(vector.out)["embedding"].size(), 384u);
  answer_in("/", {"eval", folder.at("runs"), "--export", folder.at("hub"), "--json"});
  EXPECT_TRUE(fs::exists(folder.at("hub/tokenizer.json")));
  EXPECT_THAT(base::read_file(folder.at("hub/config.json")),
              AllOf(HasSubstr("\"id2label\""), HasSubstr("BertForSequenceClassification")));
}

TEST(SelfContained, ARunDoesNotGoOnWithOtherDataUnasked) {
  const test::TempFolder folder;
  write_run(folder, "bytes");
  const std::string text = base::read_file(folder.at("mine/data/text.txt"));
  const auto train = [&](int steps, Arguments more) {
    Arguments all = {"train", "mine/recipe.toml", "--json", "--set",
                     "train.max_steps=" + std::to_string(steps)};
    all.insert(all.end(), more.begin(), more.end());
    return run_in(folder.path(), all);
  };
  EXPECT_TRUE(train(2, {}).status.ok());
  folder.file("mine/data/text.txt", {text.rbegin(), text.rend()});
  const base::Output reversed = train(4, {});
  EXPECT_EQ(reversed.status.code, 2);
  EXPECT_THAT(reversed.err, AllOf(HasSubstr("data.text is as long as before, but its content"),
                                  HasSubstr("--allow-other-data")));
  folder.file("mine/data/text.txt", text.substr(0, text.size() / 2));
  EXPECT_THAT(train(4, {}).err, HasSubstr("data.text had 6"));
  // The old ones again, elsewhere: the same data.
  fs::rename(folder.at("mine/data"), folder.at("mine/moved"));
  folder.file("mine/moved/text.txt", text);
  const base::Output moved = train(4, {"--set", "data.text=mine/moved/text.txt"});
  EXPECT_TRUE(moved.status.ok()) << moved.err;
  EXPECT_EQ(nlohmann::json::parse(moved.out)["resumed_at"], 2);
  folder.file("mine/moved/text.txt", text.substr(0, text.size() / 2));
  const base::Output allowed =
      train(6, {"--set", "data.text=mine/moved/text.txt", "--allow-other-data"});
  EXPECT_TRUE(allowed.status.ok()) << allowed.err;
  EXPECT_EQ(nlohmann::json::parse(allowed.out)["resumed_at"], 4);
  EXPECT_THAT(allowed.err, HasSubstr("was trained on other data"));
}

// Written by the last version that knew no attachments; see version1/README.md.
class Version1 : public testing::Test {
 protected:
  void SetUp() override {
    fs::copy(kVersion1, folder_.path(),
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  }

  const test::TempFolder folder_;
};

TEST_F(Version1, IsJudgedWritesAndIsExported) {
  const auto judged = answer_in(folder_.path(), {"eval", "runs", "--json"});
  EXPECT_NEAR(judged["loss"], 0.00067, 1e-4) << "a new model has 5.5";
  EXPECT_EQ(judged["step"], 40);
  const auto written = answer_in(
      folder_.path(), {"eval", "runs", "--generate", "Every rank", "--tokens", "6", "--json"});
  EXPECT_EQ(written["text"], "Every rank holds");
  answer_in(folder_.path(), {"eval", "runs", "--export", "hub", "--json"});
  EXPECT_TRUE(fs::exists(folder_.at("hub/tokenizer.json")));
  const base::Output verified = run_in(folder_.path(), {"inspect", "--verify", "runs"});
  EXPECT_TRUE(verified.status.ok()) << verified.err;
}

TEST_F(Version1, IsGoneOnFrom) {
  const auto train = [&](const std::string& steps) {
    return run_in(folder_.path(),
                  {"train", "recipe.toml", "--json", "--set", "checkpoint.dir=runs", "--set",
                   "train.threads=1", "--set", "train.max_steps=" + steps});
  };
  const base::Output first = train("42");
  EXPECT_TRUE(first.status.ok()) << first.err;
  EXPECT_THAT(first.err, HasSubstr("does not say what data it was trained on"));
  EXPECT_EQ(nlohmann::json::parse(first.out)["resumed_at"], 40);
  EXPECT_LT(nlohmann::json::parse(first.out)["held_out_loss"], 0.01);
  const base::Output second = train("44");  // from a checkpoint of today
  EXPECT_EQ(nlohmann::json::parse(second.out)["resumed_at"], 42);
  EXPECT_THAT(second.err, Not(HasSubstr("does not say")));
}

}  // namespace
}  // namespace lockstep
