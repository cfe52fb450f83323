// What a new user does, from start to end and with the program alone: own text, own labelled texts,
// own pictures; a run that is killed and goes on; a model that is all that is left, is exported and
// is a beginning again. tests/train/user_walk_python_test.cpp opens the exports with transformers.
#include <filesystem>
#include <signal.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/unique_fd.h"
#include "pictures/picture_files.h"
#include "support/job.h"
#include "train/own_data.h"
#include "train/program.h"
#include "train/tiny_bert.h"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Json = nlohmann::json;

Arguments set(const Arguments& settings) {
  Arguments arguments;
  for (const std::string& setting : settings) {
    arguments.insert(arguments.end(), {"--set", setting});
  }
  return arguments;
}

class UserWalk : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(mine()); }

  // People put blanks into names.
  std::string mine(const std::string& name = "") const { return folder_.at("my things/" + name); }
  void write(const std::string& name, const std::string& text) const {
    folder_.file("my things/" + name, text);
  }

  Json answer(const Arguments& argv) const { return answer_in(folder_.path(), argv); }
  base::Output train(const std::string& recipe, const Arguments& settings = {},
                     const Arguments& flags = {}) const {
    return run_in(mine(), with(with({"train", recipe, "--json"}, set(settings)), flags));
  }
  // On ranks; with the arguments of launch_rhyme().
  base::Output train_rhyme(int ranks, int64_t steps, const Arguments& more = {},
                           const std::string& dir = "runs/killed") const {
    Arguments argv = with({"run"}, launch_rhyme(ranks, dir, steps));
    argv.emplace_back("--json");
    return run_in(mine(), with(argv, more));
  }
  Arguments launch_rhyme(int ranks, const std::string& dir, int64_t steps) const {
    return with({fmt::format("--nproc-per-node={}", ranks), "--", lockstep_program(), "train",
                 mine("rhyme.toml")},
                set({"checkpoint.dir=" + mine(dir), "checkpoint.every=5", "train.log_every=1",
                     fmt::format("train.max_steps={}", steps)}));
  }

  void text();
  void reviews();
  void pictures();
  int64_t kill_a_rank() const;
  void go_on();
  void lose_everything_else();
  void begin_with_what_was_exported();

  const TempFolder folder_;
  std::string written_;               // by the model of the text
  Json text_judged_, review_judged_;  // by data of their own
  Json picture_judged_, vector_;
};

Json parsed(const base::Output& output) {
  EXPECT_TRUE(output.status.ok()) << output.status.text() << "\n" << output.err;
  return Json::parse(output.out, nullptr, false);
}

void expect_refused(const base::Output& output, const std::string& way_out) {
  EXPECT_EQ(output.status.code, 2) << output.out;
  EXPECT_THAT(output.err, AllOf(HasSubstr("lockstep train: "), HasSubstr(way_out)));
}

// 1. A text becomes a model that knows it by heart.
void UserWalk::text() {
  SCOPED_TRACE("own text");
  write("rhyme.txt", rhyme());
  write("rhyme.toml", rhyme_recipe());
  folder_.file("held out.txt", rhyme().substr(5, 640));
  const Json trained = parsed(train("rhyme.toml"));
  EXPECT_EQ(trained["steps"], 120);
  EXPECT_LT(trained["held_out_loss"], 0.3) << "a new model has 5.5";
  written_ = answer(
      {"eval", mine("runs/rhyme"), "--generate", "The cat", "--tokens", "20", "--json"})["text"];
  EXPECT_EQ(written_, "The cat sat on the mat.\nA d");
  text_judged_ = answer({"eval", mine("runs/rhyme"), "--json", "--set",
                         "data.held_out=" + folder_.at("held out.txt")});
  EXPECT_EQ(text_judged_["counted"], 620) << "20 sequences of 32 bytes";
}

// 2. A small BERT learns labels from a file that is sorted by label.
void UserWalk::reviews() {
  SCOPED_TRACE("own labelled texts");
  write("reviews.jsonl", sorted_reviews(40));
  write("reviews.toml", review_recipe());
  write_review_bert(mine("bert"));
  folder_.file("judge.jsonl", sorted_reviews(6));
  const Json trained = parsed(train("reviews.toml"));
  EXPECT_EQ(trained["held_out_texts"], 41);
  EXPECT_GE(trained["held_out_accuracy"], 0.9) << "the last third of it is one label";
  review_judged_ = answer({"eval", mine("runs/reviews"), "--json", "--set",
                           "data.held_out=" + folder_.at("judge.jsonl")});
  EXPECT_EQ(review_judged_["counted"], 18);
  EXPECT_GE(review_judged_["accuracy"], 0.9);
  vector_ = answer(
      {"eval", mine("runs/reviews"), "--embed", "This film is great", "--json"})["embedding"];
  EXPECT_EQ(vector_.size(), 16u);
}

void write_fruit(const std::string& folder, int num_each) {
  const auto seed = static_cast<unsigned>(num_each);
  write_noisy_pictures(folder + "/apple", {.num = num_each, .colour = {150, 20, 20}, .seed = seed});
  write_noisy_pictures(folder + "/lime", {.num = num_each, .colour = {20, 150, 20}, .seed = seed});
  write_noisy_pictures(folder + "/plum", {.num = num_each, .colour = {20, 20, 150}, .seed = seed});
}

// 3. Pictures in a folder for each class; nobody has photographed apples to judge by.
void UserWalk::pictures() {
  SCOPED_TRACE("own pictures");
  write_fruit(mine("fruit"), 16);
  write_fruit(folder_.at("judge"), 6);
  fs::remove_all(folder_.at("judge/apple"));
  write("fruit.toml",
        "recipe = \"resnet50\"\n[model]\nconfig = \"resnet18\"\n"
        "[data]\nfolder = \"fruit\"\nheld_out_folder = \"../judge\"\npicture_size = 32\n"
        "[train]\nepochs = 6\nbatch_size = 8\nlr = 0.01\nthreads = 1\n"
        "[checkpoint]\ndir = \"runs/fruit\"\n");
  const Json trained = parsed(train("fruit.toml"));
  EXPECT_EQ(trained["held_out_pictures"], 12);
  EXPECT_GE(trained["held_out_accuracy"], 0.9) << "the first class is not the first folder";
  picture_judged_ = answer({"eval", mine("runs/fruit"), "--json"});
  EXPECT_EQ(picture_judged_["accuracy"], trained["held_out_accuracy"]);
}

// Of a job that would go on for ever; the step of its newest checkpoint.
int64_t UserWalk::kill_a_rank() const {
  Job job(launch_rhyme(2, "runs/killed", 1'000'000));
  EXPECT_TRUE(job.wait_for_output("step   20/", 1)) << job.err();
  const auto ranks = job.workers();
  if (ranks.size() != 2) {
    ADD_FAILURE() << ranks.size() << " ranks: " << job.out() << job.err();
    return 0;
  }
  ::kill(ranks.back(), SIGKILL);
  EXPECT_EQ(job.wait().shell_code(), 128 + SIGKILL) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("SIGKILL"));
  EXPECT_TRUE(job.is_gone());
  return std::stoll(
      base::read_file(mine("runs/killed/latest")).substr(std::string("step-").size()));
}

// 4. A run is killed, goes on as if it was not, moves to other ranks and other data.
void UserWalk::go_on() {
  SCOPED_TRACE("killed, and gone on");
  const int64_t saved = kill_a_rank();
  ASSERT_GE(saved, 15);
  const Json resumed = parsed(train_rhyme(2, saved + 3));
  EXPECT_EQ(resumed["resumed_at"], saved);
  const Json in_peace = parsed(train_rhyme(2, saved + 3, {}, "runs/peace"));
  EXPECT_EQ(in_peace["resumed_at"], 0);
  EXPECT_EQ(resumed["parameter_hashes"], in_peace["parameter_hashes"]);
  // Two shards are dealt to one rank with the same bits, to three only with other ones.
  const Json alone = parsed(train_rhyme(1, saved + 6));
  EXPECT_EQ(alone["resumed_at"], saved + 3);
  EXPECT_EQ(alone["parameter_hashes"][0],
            parsed(train_rhyme(2, saved + 6, {}, "runs/peace"))["parameter_hashes"][0]);
  expect_refused(train_rhyme(3, saved + 9), "--allow-other-bits");
  const base::Output on_three = train_rhyme(3, saved + 9, {"--allow-other-bits"});
  EXPECT_EQ(parsed(on_three)["resumed_at"], saved + 6);
  EXPECT_EQ(parsed(on_three)["same_bits"], true);
  EXPECT_THAT(on_three.err, HasSubstr("goes on with 3 shards instead of 2"));
  // A line more, and it is another text.
  write("rhyme.txt", rhyme() + "The end of the rhyme, or is it?\n");
  expect_refused(train_rhyme(3, saved + 12), "--allow-other-data");
  const base::Output on_others = train_rhyme(3, saved + 12, {"--allow-other-data"});
  EXPECT_EQ(parsed(on_others)["resumed_at"], saved + 9);
  EXPECT_THAT(on_others.err, HasSubstr("was trained on other data"));
}

// 5. All that is left is the folder of checkpoints, in another place.
void UserWalk::lose_everything_else() {
  SCOPED_TRACE("moved, and everything else deleted");
  fs::rename(mine("runs"), folder_.at("kept"));
  fs::remove_all(mine());
  EXPECT_EQ(
      answer({"eval", "kept/rhyme", "--generate", "The cat", "--tokens", "20", "--json"})["text"],
      written_);
  const auto judged = [&](const std::string& run, const std::string& setting) {
    Json json = answer({"eval", "kept/" + run, "--json", "--set", setting});
    json.erase("checkpoint");
    return json;
  };
  for (Json* json : {&text_judged_, &review_judged_, &picture_judged_}) {
    json->erase("checkpoint");
  }
  EXPECT_EQ(judged("rhyme", "data.held_out=held out.txt"), text_judged_);
  EXPECT_EQ(judged("reviews", "data.held_out=judge.jsonl"), review_judged_);
  EXPECT_EQ(judged("fruit", "data.held_out_folder=judge"), picture_judged_);
  EXPECT_EQ(
      answer({"eval", "kept/reviews", "--embed", "This film is great", "--json"})["embedding"],
      vector_);
  for (const char* run : {"rhyme", "reviews", "fruit"}) {
    answer({"eval", std::string("kept/") + run, "--json", "--export", std::string("hub/") + run});
  }
  answer({"eval", "kept/fruit", "--json", "--export", "fruit.pth"});
  const base::Output difference =
      run_in(folder_.path(), {"inspect", "--diff", "fruit.pth", "hub/fruit/model.safetensors"});
  EXPECT_TRUE(difference.status.ok()) << difference.out << difference.err;
  const Json config = Json::parse(base::read_file(folder_.at("hub/reviews/config.json")));
  EXPECT_EQ(config["id2label"], Json({{"0", "poor"}, {"1", "fair"}, {"2", "good"}}));
  const Json fruit = Json::parse(base::read_file(folder_.at("hub/fruit/config.json")));
  EXPECT_EQ(fruit["id2label"], Json({{"0", "apple"}, {"1", "lime"}, {"2", "plum"}}));
}

// 6. What was exported is somebody's pretrained model. A learning rate of 0 leaves it as it is.
void UserWalk::begin_with_what_was_exported() {
  SCOPED_TRACE("exported, and a beginning again");
  const auto begin = [&](const std::string& recipe, const std::string& name,
                         const Arguments& settings) {
    folder_.file(name + ".toml", recipe);
    return answer(with(with({"train", name + ".toml", "--json"}, set(settings)),
                       set({"train.lr=0", "train.max_steps=1", "train.weight_decay=0",
                            "checkpoint.dir=again/" + name})));
  };
  folder_.file("rhyme.txt", rhyme());
  begin("recipe = \"gpt2\"\n", "rhyme",
        {"model.pretrained=hub/rhyme", "data.tokenizer=hub/rhyme", "data.text=rhyme.txt",
         "data.sequence_length=32"});
  const Json text =
      answer({"eval", "again/rhyme", "--json", "--set", "data.held_out=held out.txt"});
  EXPECT_NEAR(text["loss"], text_judged_["loss"], 1e-6);
  EXPECT_EQ(
      answer({"eval", "again/rhyme", "--generate", "The cat", "--tokens", "20", "--json"})["text"],
      written_);
  const Json reviews =
      begin("recipe = \"bert-classify\"\n", "reviews",
            {"model.pretrained=hub/reviews", "model.num_labels=3", "data.train=judge.jsonl",
             "data.held_out=judge.jsonl", "data.max_length=16"});
  EXPECT_EQ(reviews["held_out_accuracy"], review_judged_["accuracy"]) << "its head came along";
  EXPECT_NEAR(reviews["held_out_loss"], review_judged_["loss"], 1e-6);
  EXPECT_EQ(
      answer({"eval", "again/reviews", "--embed", "This film is great", "--json"})["embedding"],
      vector_);
  write_fruit(folder_.at("more fruit"), 6);
  for (const char* from : {"hub/fruit", "fruit.pth"}) {
    SCOPED_TRACE(from);
    fs::remove_all(folder_.at("again/fruit"));
    const Json fruit = begin(
        "recipe = \"resnet50\"\n", "fruit",
        {std::string("model.pretrained=") + from, "model.num_classes=3", "data.folder=more fruit",
         "data.held_out_folder=judge", "data.picture_size=32", "train.batch_size=12"});
    // Not to the last digit: BatchNorm's statistics have seen a step.
    EXPECT_NEAR(fruit["held_out_accuracy"], picture_judged_["accuracy"], 0.1);
    EXPECT_NEAR(fruit["held_out_loss"], picture_judged_["loss"], 0.3);
  }
}

TEST_F(UserWalk, FromOwnDataToAModelOfOnesOwn) {
  text();
  reviews();
  pictures();
  go_on();
  if (!HasFatalFailure()) {
    lose_everything_else();
    begin_with_what_was_exported();
  }
}

}  // namespace
}  // namespace lockstep::test
