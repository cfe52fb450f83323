#include "train/recipe.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "support/temp_folder.h"
#include "train/byte_text.h"
#include "train/list_text.h"
#include "train/trainer_config.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

std::unique_ptr<Recipe> read(const std::string& toml) {
  Config config = Config::from_text(toml);
  return read_recipe(config);
}

TEST(Recipes, TheFilesThatComeWithLockstepSpellOutTheDefaults) {
  std::filesystem::current_path(LOCKSTEP_SOURCE_DIR);
  for (const std::string& name : recipe_names()) {
    Config file = Config::from_file("recipes/" + name + ".toml");
    EXPECT_EQ(read_recipe(file)->effective(), read("recipe = \"" + name + "\"")->effective());
  }
}

TEST(Recipes, WhatWasReadGivesTheSameRunAgain) {
  for (const std::string& name : recipe_names()) {
    const auto recipe = read("recipe = \"" + name + "\"\n[train]\nlr = 0.123\nepochs = 7");
    const auto again = read(recipe->effective());
    EXPECT_EQ(again->effective(), recipe->effective());
    EXPECT_EQ(again->options().lr, 0.123);
    const std::string remembered = recipe->options().values.at("config");
    EXPECT_EQ(again->options().values.at("config"), remembered);
    EXPECT_EQ(read(remembered)->options().values.at("config"), remembered);
  }
}

TEST(Recipes, ReadEverySection) {
  const auto recipe = read(
      "recipe = \"cats\"\n[model]\nchannels = 8\n[train]\nlr = 1\noptimizer = \"lion\"\n"
      "precision = \"bfloat16\"\nschedule = \"linear\"\non_bad_step = \"stop\"\nshards = 8\n"
      "max_time_s = 60\n[checkpoint]\ndir = \"runs\"\nevery = 5\nkeep_every_minutes = 90");
  const TrainerOptions& options = recipe->options();
  EXPECT_EQ(options.optimizer, OptimizerKind::Lion);
  EXPECT_EQ(options.precision, Precision::BFloat16);
  EXPECT_EQ(options.schedule, Schedule::Linear);
  EXPECT_EQ(options.on_bad_step, BadStepRule::Stop);
  EXPECT_EQ(options.shards, 8);
  EXPECT_EQ(options.max_time, std::chrono::seconds(60));
  EXPECT_EQ(options.checkpoint_dir, "runs");
  EXPECT_EQ(options.keep.keep_every, std::chrono::minutes(90));
  EXPECT_EQ(options.epochs, 32) << "the recipe's own default";
}

TEST(Recipes, OnlyWhatMakesTheRunIsInItsDescription) {
  const auto description = [](const std::string& more) {
    return read("recipe = \"cats\"\n" + more)->options().description;
  };
  EXPECT_EQ(description(""), description("[train]\nepochs = 3\nworkers = 1\nlog_every = 1\n"
                                         "[checkpoint]\ndir = \"x\"\nevery = 3"));
  EXPECT_NE(description(""), description("[train]\nlr = 0.5"));
  EXPECT_NE(description(""), description("[model]\nchannels = 8"));
  EXPECT_NE(description(""), description("[data]\nseed = 8"));
}

TEST(Recipes, PathsAreRelativeToTheRecipeAndThoseOfSetToTheWorkingFolder) {
  const test::TempFolder folder;
  std::filesystem::create_directories(folder.at("mine"));
  std::filesystem::create_directories(folder.at("elsewhere"));
  folder.file("mine/a.toml",
              "recipe = \"gpt2\"\n[data]\ntext = \"x.txt, ../y.txt,/z.txt,s3://b/t.txt\"\n"
              "[checkpoint]\ndir = \"runs\"");
  std::filesystem::current_path(folder.path());
  Config config = Config::from_file("mine/a.toml");
  config.set("model.pretrained=weights/gpt2");
  const auto recipe = read_recipe(config);
  EXPECT_THAT(recipe->effective(),
              AllOf(HasSubstr("text = 'mine/x.txt,y.txt,/z.txt,s3://b/t.txt'"),
                    HasSubstr("pretrained = 'weights/gpt2'"), HasSubstr("tokenizer = 'bytes'")));
  EXPECT_EQ(recipe->options().checkpoint_dir, "mine/runs");
  EXPECT_THAT(recipe->options().values.at("config"),
              AllOf(HasSubstr(fmt::format("text = '{0}/mine/x.txt,{0}/y.txt,/z.txt,s3://b/t.txt'",
                                          folder.path())),
                    HasSubstr(fmt::format("pretrained = '{}/weights/gpt2'", folder.path()))))
      << "a checkpoint is read from other working folders";
  // Where the files lie does not make the run.
  std::filesystem::current_path(folder.at("elsewhere"));
  Config again = Config::from_file("../mine/a.toml");
  again.set("model.pretrained=../weights/gpt2");
  EXPECT_EQ(read_recipe(again)->options().description, recipe->options().description);
  std::filesystem::current_path(LOCKSTEP_SOURCE_DIR);
}

TEST(Recipes, UnknownNamesAndKeysGetTheNearest) {
  EXPECT_THAT([] { read("recipe = \"gpt3\""); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("did you mean gpt2?"),
                                              HasSubstr("known: cats, mytransformer, gpt2"))));
  EXPECT_THAT([] { read("[train]\nepochs = 1"); },
              ThrowsMessage<UsageError>(HasSubstr("recipe = \"cats\"")));
  EXPECT_THAT([] { read("recipe = \"gpt2\"\n[train]\nepoch = 3"); },
              ThrowsMessage<UsageError>(HasSubstr("did you mean train.epochs?")));
  EXPECT_THAT([] { read("recipe = \"cats\"\n[data]\ntext = \"x\""); },
              ThrowsMessage<UsageError>(HasSubstr("data.text")));
}

TEST(Recipes, RefuseWhatCannotBe) {
  const auto refuses = [](const std::string& text, const char* reason) {
    EXPECT_THAT([&] { read(text); }, ThrowsMessage<UsageError>(HasSubstr(reason))) << text;
  };
  refuses("recipe = \"cats\"\n[train]\nepochs = 0", "train.epochs");
  refuses("recipe = \"cats\"\n[train]\noptimizer = \"adam\"", "adamw");
  refuses("recipe = \"cats\"\n[train]\nprecision = \"float8\"", "bfloat16");
  refuses("recipe = \"cats\"\n[data]\nheld_out_seed = 1", "are both 1");
  refuses("recipe = \"cats\"\n[checkpoint]\nevery = 5", "set checkpoint.dir");
  refuses("recipe = \"mytransformer\"\n[data]\nsequence_length = 129", "128 positions");
  refuses("recipe = \"mytransformer\"\n[model]\nhidden_size = 130", "4 heads");
  refuses("recipe = \"mytransformer\"\n[data]\ntext = \"\"", "data.tokens");
  refuses("recipe = \"gpt2\"\n[model]\nconfig = \"resnet50\"", "is no GPT-2");
  refuses("recipe = \"bert-classify\"\n[model]\npretrained = \"\"", "the folder of a BERT");
  refuses("recipe = \"resnet50\"\n[model]\nconfig = \"gpt2\"", "is no ResNet");
  refuses("recipe = \"resnet50\"\n[data]\nfolder = \"a\"\nshards = \"b.tar\"", "one of them");
}

TEST(Recipes, AModelWithoutPlaceForTheBytesIsRefusedWhenItIsMade) {
  Group group = make_single_group();
  const test::TempFolder folder;
  const std::string text = folder.file("a.txt", std::string(1000, 'a'));
  EXPECT_THAT(
      [&] {
        read("recipe = \"mytransformer\"\n[model]\nvocab_size = 100\n[data]\ntext = \"" + text +
             "\"")
            ->make(group);
      },
      ThrowsMessage<UsageError>(HasSubstr("256 bytes")));
  EXPECT_THAT([&] { read("recipe = \"gpt2\"\n[data]\ntext = \"/no/such\"")->make(group); },
              ThrowsMessage<IoError>(HasSubstr("/no/such")));
}

TEST(Recipes, TheHeldOutShareIsTheEnd) {
  const test::TempFolder folder;
  const std::string file = folder.file("a.txt", "abcdefghijklmnopqrstuvwxyz");
  const TrainerData data = split_held_out(open_byte_text({file}, 2), 0.2);
  EXPECT_EQ(data.train->size(), 10);
  EXPECT_EQ(data.held_out->size(), 3);
  const SampleKey first{.index = 0};
  EXPECT_EQ(data.held_out->batch({&first, 1}).input[0][0].item<int64_t>(), 'u');
  EXPECT_EQ(split_held_out(open_byte_text({file}, 2), 0).held_out, nullptr);
  EXPECT_THROW(split_held_out(open_byte_text({file}, 26), 0.5), UsageError);
  EXPECT_THROW(open_byte_text({file}, 27), UsageError);
  EXPECT_EQ(decode_bytes(encode_bytes("caf\xc3\xa9")), "caf\xc3\xa9");
}

TEST(Recipes, AListHasCommas) {
  EXPECT_EQ(split_list("a, b,,c "), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_TRUE(split_list("").empty());
}

}  // namespace
}  // namespace lockstep
