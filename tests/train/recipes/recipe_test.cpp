#include "train/recipes/recipe.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/models/auto_model.h>
#include <lockstep/models/bert.h>
#include <lockstep/models/gpt2.h>

#include "support/paths.h"
#include "support/temp_folder.h"
#include "train/recipes/byte_text.h"
#include "train/trainer_config.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

std::unique_ptr<train::Recipe> read(const std::string& toml) {
  base::Config config = base::Config::from_text(toml);
  return train::read_recipe(config);
}

TEST(Recipes, TheFilesThatComeWithLockstepSpellOutTheDefaults) {
  std::filesystem::current_path(testing_support::in_tree(""));
  for (const std::string& name : train::recipe_names()) {
    base::Config file = base::Config::from_file("recipes/" + name + ".toml");
    EXPECT_EQ(train::read_recipe(file)->effective(),
              read("recipe = \"" + name + "\"")->effective());
  }
}

TEST(Recipes, WhatWasReadGivesTheSameRunAgain) {
  for (const std::string& name : train::recipe_names()) {
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

const char* const kGroups = R"(recipe = "cats"
[[train.groups]]
name = "picture side"
pattern = "^conv"
lr_scale = 0.1
[[train.groups]]
name = "biases"
pattern = "bias$"
weight_decay = 0.2
[[train.groups]]
name = "last"
pattern = "^fc"
frozen = true
)";

TEST(Recipes, HaveParameterGroupsInTheirOrder) {
  const auto recipe = read(kGroups);
  for (const TrainerOptions& options : {recipe->options(), read(recipe->effective())->options(),
                                        read(recipe->options().values.at("config"))->options()}) {
    ASSERT_EQ(options.groups.size(), 3u);
    EXPECT_EQ(options.groups[0].name, "picture side");
    EXPECT_EQ(options.groups[0].pattern, "^conv");
    EXPECT_EQ(options.groups[0].lr_scale, 0.1);
    EXPECT_FALSE(options.groups[0].weight_decay.has_value()) << "as without a group";
    EXPECT_EQ(options.groups[1].name, "biases");
    EXPECT_EQ(options.groups[1].lr_scale, 1);
    EXPECT_EQ(options.groups[1].weight_decay, 0.2);
    EXPECT_TRUE(options.groups[2].is_frozen);
    EXPECT_FALSE(options.groups[1].is_frozen);
    EXPECT_EQ(options.description, recipe->options().description);
  }
  EXPECT_EQ(read("recipe = \"cats\"")->options().groups.size(), 0u);
  base::Config changed = base::Config::from_text(kGroups);
  changed.set("train.groups.1.lr_scale=0.5");
  const auto other = train::read_recipe(changed);
  EXPECT_EQ(other->options().groups[1].lr_scale, 0.5);
  EXPECT_NE(other->options().description, recipe->options().description);
}

TEST(Recipes, AGroupThatIsNotWholeIsNamed) {
  const auto refuses = [](const std::string& lines, const char* sentence) {
    EXPECT_THAT([&] { read("recipe = \"cats\"\n[[train.groups]]\n" + lines); },
                ThrowsMessage<UsageError>(HasSubstr(sentence)))
        << lines;
  };
  refuses("name = \"a\"", "train.groups.0.pattern is missing: each of [[train.groups]] has");
  refuses("pattern = \"a\"", "train.groups.0.name is missing");
  refuses("name = \"a\"\npattern = \"b\"\nlr_scale = -1", "train.groups.0.lr_scale = -1");
  refuses("name = \"a\"\npattern = \"b\"\nlr = 1", "there is no setting train.groups.0.lr");
  refuses("name = \"a\"\npattern = \"b\"\nis_frozen = true", "did you mean train.groups.0.frozen?");
  refuses("name = \"a\"\npattern = \"b\"\nweigth_decay = 1",
          "did you mean train.groups.0.weight_decay?");
}

TEST(Recipes, TakeAsManyShardsAsTheySay) {
  EXPECT_EQ(read("recipe = \"cats\"\n[train]\nshards = 65536")->options().shards, 65536);
  EXPECT_THAT([] { read("recipe = \"cats\"\n[train]\nshards = 65537"); },
              ThrowsMessage<UsageError>(HasSubstr("train.shards = 65537 is not in [0, 65536]")));
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
  base::Config config = base::Config::from_file("mine/a.toml");
  config.set("model.pretrained=weights/gpt2");
  const auto recipe = train::read_recipe(config);
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
  base::Config again = base::Config::from_file("../mine/a.toml");
  again.set("model.pretrained=../weights/gpt2");
  EXPECT_EQ(train::read_recipe(again)->options().description, recipe->options().description);
  std::filesystem::current_path(testing_support::in_tree(""));
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
  const std::pair<const char*, const char*> meant[] = {
      {"[train]\nlearning_rate = 0.1", "no setting train.learning_rate; did you mean train.lr?"},
      {"[train]\nmax_grad_norm = 1", "did you mean train.clip_norm?"},
      {"[train]\nsave_steps = 10", "did you mean checkpoint.every?"},
      {"[optimizer]\nlr = 0.1", "did you mean train.lr?"},
      {"[model]\nn_embd = 12", "did you mean model.hidden_size?"}};
  for (const auto& [text, answer] : meant) {
    EXPECT_THAT([&] { read(std::string("recipe = \"gpt2\"\n") + text); },
                ThrowsMessage<UsageError>(HasSubstr(answer)));
  }
  EXPECT_THAT(
      [] { read("recipe = \"gpt2\"\n[data]\nzzzzzzzzzzzzzzzz = 1"); },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("known: data."), Not(HasSubstr("train.lr")))))
      << "those of its section";
}

TEST(Recipes, AConfigOnTheCommandLineStandsForAllSizesOfTheFile) {
  base::Config config = base::Config::from_text(
      "recipe = \"gpt2\"\n[model]\nvocab_size = 256\nhidden_size = 128\nnum_layers = 2\n"
      "num_heads = 4\nffn_size = 512\nmax_positions = 128\ndropout = 0.2");
  config.set("model.config=gpt2-medium");
  config.set("model.num_layers=3");
  const std::string text = train::read_recipe(config)->effective();
  EXPECT_THAT(text, AllOf(HasSubstr("hidden_size = 1024"), HasSubstr("ffn_size = 4096"),
                          HasSubstr("max_positions = 1024"), HasSubstr("vocab_size = 50257")));
  EXPECT_THAT(text, HasSubstr("num_layers = 3")) << "--set beside it counts";
  EXPECT_THAT(text, HasSubstr("dropout = 0.2")) << "is no size";
  EXPECT_EQ(read(text)->effective(), text);
  base::Config empty = base::Config::from_text("recipe = \"gpt2\"\n[model]\nhidden_size = 64");
  empty.set("model.config=");
  EXPECT_THAT(train::read_recipe(empty)->effective(), HasSubstr("hidden_size = 64"));
}

TEST(Recipes, APretrainedModelHasItsOwnSizesAndTheRecipesDropout) {
  Group group = make_single_group();
  const test::TempFolder folder;
  const GPT2 published(GPT2Options{.vocab_size = 300,
                                   .hidden_size = 16,
                                   .num_layers = 1,
                                   .num_heads = 2,
                                   .ffn_size = 32,
                                   .max_positions = 64,
                                   .embedding_dropout = 0.3,
                                   .attention_dropout = 0.3,
                                   .residual_dropout = 0.3});
  save_pretrained(*published, folder.at("gpt2"));
  const std::string text = folder.file("a.txt", std::string(1000, 'a'));
  const auto config_of = [&](const std::string& model) {
    return base::Config::from_text("recipe = \"gpt2\"\n[data]\nsequence_length = 32\ntext = \"" +
                                   text + "\"\n[model]\npretrained = \"" + folder.at("gpt2") +
                                   "\"\n" + model);
  };
  const auto dropout_of = [](const train::Ingredients& made) {
    return std::get<GPT2Options>(made.exports->config().options).attention_dropout;
  };
  base::Config config = config_of("dropout = 0.9\nhidden_size = 128\nnum_layers = 2");
  const auto recipe = train::read_recipe(config);
  const train::Ingredients made = recipe->make(group);
  EXPECT_EQ(dropout_of(made), 0.9);
  const std::string echo = recipe->effective(made);
  EXPECT_THAT(echo, AllOf(HasSubstr("hidden_size = 16\n"), HasSubstr("num_layers = 1\n"),
                          HasSubstr("vocab_size = 300\n"), HasSubstr("max_positions = 64\n"),
                          HasSubstr("dropout = 0.9\n")));
  EXPECT_EQ(read(echo)->effective(), echo) << "read back, it gives the same run";

  base::Config plain = config_of("");
  const auto as_published = train::read_recipe(plain);
  const train::Ingredients again = as_published->make(group);
  EXPECT_EQ(dropout_of(again), 0.3);
  EXPECT_THAT(as_published->effective(again), HasSubstr("dropout = 0.3\n"));

  base::Config none = config_of("dropout = 0.0");
  const auto without = train::read_recipe(none);
  const train::Ingredients still = without->make(group);
  EXPECT_EQ(dropout_of(still), 0);
  EXPECT_THAT(without->effective(still), HasSubstr("dropout = 0.0\n"));

  base::Config asked = config_of("");
  asked.set("model.num_layers=3");
  EXPECT_THAT([&] { train::read_recipe(asked)->make(group); },
              ThrowsMessage<UsageError>(
                  AllOf(HasSubstr("model.num_layers = 3, but the model in"), HasSubstr("has 1"))));
}

TEST(Recipes, ALengthAboveTheModelsPositionsIsRefusedWhenItIsMade) {
  Group group = make_single_group();
  const test::TempFolder folder;
  const BertForSequenceClassification published(BertOptions{.vocab_size = 8,
                                                            .hidden_size = 8,
                                                            .num_layers = 1,
                                                            .num_heads = 2,
                                                            .ffn_size = 8,
                                                            .max_positions = 16});
  save_pretrained(*published, folder.at("bert"));
  folder.file("bert/vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\n");
  const std::string train = folder.file(
      "train.jsonl", "{\"text\": \"a b\", \"label\": 0}\n{\"text\": \"c\", \"label\": 1}\n");
  const auto make = [&](const std::string& max_length) {
    return read("recipe = \"bert-classify\"\n[model]\npretrained = \"" + folder.at("bert") +
                "\"\n[data]\nheld_out_share = 0.5\ntrain = \"" + train +
                "\"\nmax_length = " + max_length)
        ->make(group);
  };
  EXPECT_NO_THROW(make("16"));
  EXPECT_THAT(
      [&] { make("17"); },
      ThrowsMessage<UsageError>(HasSubstr("data.max_length = 17 is more than the model's 16")));
}

TEST(Recipes, RefuseWhatCannotBe) {
  const auto refuses = [](const std::string& text, const char* reason) {
    EXPECT_THAT([&] { read(text); }, ThrowsMessage<UsageError>(HasSubstr(reason))) << text;
  };
  refuses("recipe = \"cats\"\n[train]\nepochs = 0", "train.epochs");
  refuses("recipe = \"cats\"\n[train]\nbeta1 = 1", "train.beta1 = 1 is not in [0, 1)");
  refuses("recipe = \"cats\"\n[train]\nbeta2 = 1.0", "train.beta2 = 1 is not in [0, 1)");
  refuses("recipe = \"cats\"\n[train]\nmomentum = 1", "train.momentum = 1");
  refuses("recipe = \"cats\"\n[train]\neps = 0", "train.eps = 0 is not in (0, 1]");
  refuses("recipe = \"cats\"\n[train]\nlabel_smoothing = 1", "is not in [0, 1)");
  refuses("recipe = \"cats\"\n[train]\nlr = nan", "train.lr = nan");
  refuses("recipe = \"cats\"\n[train]\noptimizer = \"adam\"", "adamw");
  refuses("recipe = \"cats\"\n[train]\nprecision = \"float8\"", "bfloat16");
  refuses("recipe = \"cats\"\n[data]\nheld_out_seed = 1", "are both 1");
  refuses("recipe = \"cats\"\n[checkpoint]\nevery = 5", "set checkpoint.dir");
  refuses("recipe = \"mytransformer\"\n[data]\nsequence_length = 129", "128 positions");
  refuses("recipe = \"mytransformer\"\n[model]\nhidden_size = 130", "4 heads");
  refuses("recipe = \"mytransformer\"\n[data]\ntext = \"\"", "data.tokens");
  refuses("recipe = \"gpt2\"\n[model]\nconfig = \"resnet50\"", "is not a GPT-2");
  refuses("recipe = \"bert-classify\"\n[model]\npretrained = \"\"", "the folder of a BERT");
  refuses("recipe = \"resnet50\"\n[model]\nconfig = \"gpt2\"", "is not a ResNet");
  refuses("recipe = \"resnet50\"\n[data]\nfolder = \"a\"\nshards = \"b.tar\"", "one of them");
  refuses("recipe = \"resnet50\"\n[data]\nshards = \"a.tar\"\nheld_out_folder = \"b\"",
          "set data.held_out_shards");
  refuses("recipe = \"resnet50\"\n[data]\nfolder = \"a\"\nheld_out_shards = \"b.tar\"",
          "set data.held_out_folder");
  refuses("recipe = \"resnet50\"\n[data]\nheld_out_folder = \"b\"", "needs data.folder");
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

TEST(Recipes, ByteTextsAreWholeSequences) {
  const test::TempFolder folder;
  const std::string file = folder.file("a.txt", "abcdefghijklmnopqrstuvwxyz");
  EXPECT_EQ(train::open_byte_text({file}, 3)->size(), 8);
  EXPECT_THROW(train::open_byte_text({file}, 27), UsageError);
  EXPECT_EQ(train::decode_bytes(train::encode_bytes("caf\xc3\xa9")), "caf\xc3\xa9");
}

}  // namespace
}  // namespace lockstep
