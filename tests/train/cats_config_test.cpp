#include "train/cats_config.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

CatsConfig read(const std::string& toml) {
  Config config = Config::from_text(toml);
  read_recipe_name(config);
  return read_cats_config(config);
}

TEST(CatsConfig, TheRecipeThatComesWithLockstepSpellsOutTheDefaults) {
  Config recipe = Config::from_file(LOCKSTEP_SOURCE_DIR "/recipes/cats.toml");
  read_recipe_name(recipe);
  read_cats_config(recipe);
  Config bare = Config::from_text("recipe = \"cats\"");
  read_recipe_name(bare);
  read_cats_config(bare);
  EXPECT_EQ(recipe.effective(), bare.effective());
}

TEST(CatsConfig, ReadsEverySection) {
  const CatsConfig config = read(
      "recipe = \"cats\"\n[model]\nchannels = 8\n[data]\nshuffle_labels = true\n"
      "[train]\nlr = 1\noptimizer = \"sgd\"");
  EXPECT_EQ(config.channels, 8);
  EXPECT_TRUE(config.shuffle_labels);
  EXPECT_EQ(config.lr, 1.0);
  EXPECT_EQ(config.optimizer, "sgd");
}

TEST(CatsConfig, RefusesUnknownRecipesAndNamesTheKnown) {
  EXPECT_THAT([] { read("recipe = \"dogs\""); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("\"dogs\""), HasSubstr("known: cats"))));
  EXPECT_THAT([] { read("[train]\nepochs = 1"); },
              ThrowsMessage<UsageError>(HasSubstr("recipe = \"cats\"")));
}

TEST(CatsConfig, RefusesUnknownKeysAndNamesTheNearest) {
  EXPECT_THAT([] { read("recipe = \"cats\"\n[train]\nepoch = 3"); },
              ThrowsMessage<UsageError>(HasSubstr("did you mean train.epochs?")));
}

TEST(CatsConfig, RefusesValuesOutOfRange) {
  for (const char* text : {"[train]\nepochs = 0", "[train]\nbatch_size = 0", "[train]\nlr = -1.0",
                           "[train]\noptimizer = \"adam\"", "[data]\nnum_pictures = 1",
                           "[model]\nchannels = 0", "[train]\nseed = -1"}) {
    EXPECT_THROW(read("recipe = \"cats\"\n" + std::string(text)), UsageError) << text;
  }
}

TEST(CatsConfig, RefusesToJudgeByTheTrainingPictures) {
  EXPECT_THAT([] { read("recipe = \"cats\"\n[data]\nheld_out_seed = 1"); },
              ThrowsMessage<UsageError>(HasSubstr("are both 1")));
}

TEST(CatsConfig, ABatchIsSplitEvenlyOrNotAtAll) {
  const CatsConfig config{.batch_size = 40};
  EXPECT_EQ(batch_per_rank(config, 1), 40);
  EXPECT_EQ(batch_per_rank(config, 8), 5);
  EXPECT_THAT([&] { batch_per_rank(config, 3); },
              ThrowsMessage<UsageError>(HasSubstr("over 3 ranks; use 39 or 42")));
  EXPECT_THAT([&] { batch_per_rank(config, 64); },
              ThrowsMessage<UsageError>(HasSubstr("over 64 ranks; use 64")));
}

}  // namespace
}  // namespace lockstep
