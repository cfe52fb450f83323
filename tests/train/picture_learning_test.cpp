// The recipe "resnet50" on pictures in files, down to one that cannot be read.
#include <filesystem>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "pictures/picture_files.h"
#include "support/temp_folder.h"
#include "train/recipes/recipe.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

// Mostly red and mostly blue ones, with noise.
void write_pictures(const std::string& folder, int num_each) {
  test::write_noisy_pictures(folder + "/red", {.num = num_each, .colour = {150, 40, 20}});
  test::write_noisy_pictures(folder + "/blue", {.num = num_each, .colour = {20, 40, 150}});
}

TrainResult train(const std::string& folder, const std::string& more = "") {
  base::Config config = base::Config::from_text(fmt::format(
      "recipe = \"resnet50\"\n[model]\nconfig = \"resnet18\"\n[train]\nbatch_size = 8\nlr = "
      "0.01\nepochs = 8\n"
      "[data]\nfolder = \"{0}/train\"\nheld_out_folder = \"{0}/judge\"\npicture_size = 32\n{1}",
      folder, more));
  const auto recipe = train::read_recipe(config);
  Group group = make_single_group();
  train::Ingredients made = recipe->make(group);
  return Trainer(*made.task, made.data, group, recipe->options()).run();
}

TEST(PictureLearning, AFolderOfClassesIsLearned) {
  const test::TempFolder folder;
  write_pictures(folder.at("train"), 16);
  write_pictures(folder.at("judge"), 5);
  const TrainResult result = train(folder.path());
  EXPECT_EQ(result.steps, 32);
  EXPECT_EQ(result.evaluation->num_counted, 10);
  EXPECT_GE(result.evaluation->accuracy(), 0.9);
}

train::Ingredients make(const std::string& data) {
  base::Config config = base::Config::from_text(
      "recipe = \"resnet50\"\n[model]\nconfig = \"resnet18\"\n[data]\npicture_size = 32\n" + data);
  Group group = make_single_group();
  return train::read_recipe(config)->make(group);
}

Batch first_of(const Dataset& data, uint64_t seed) {
  const SampleKey key{.index = 0, .seed = seed};
  return data.batch({&key, 1});
}

TEST(PictureLearning, HeldOutClassesAreMatchedByName) {
  const test::TempFolder folder;
  write_pictures(folder.at("train"), 2);
  write_pictures(folder.at("judge"), 1);
  std::filesystem::remove_all(folder.at("judge/blue"));
  const std::string data =
      fmt::format("folder = \"{0}/train\"\nheld_out_folder = \"{0}/judge\"", folder.path());
  const train::Ingredients made = make(data);
  ASSERT_EQ(made.data.held_out->size(), 1);
  EXPECT_EQ(first_of(*made.data.held_out, 0).target.item<int64_t>(), 1) << "red, after blue";
  EXPECT_EQ(made.held_out, "judged by the 1 pictures of " + folder.at("judge"));
  std::filesystem::rename(folder.at("judge/red"), folder.at("judge/green"));
  EXPECT_THAT([&] { make(data); }, ThrowsMessage<UsageError>(
                                       HasSubstr("the folder \"green\" in " + folder.at("judge"))));
}

// A checkpoint's model is judged by folders that lack classes, or that are all there is left.
TEST(PictureLearning, ACheckpointKnowsItsClassesByName) {
  const test::TempFolder folder;
  write_pictures(folder.at("train"), 2);
  const std::string model =
      "recipe = \"resnet50\"\n[model]\nconfig = \"resnet18\"\nnum_classes = 3\n[data]\n"
      "picture_size = 32\nheld_out_share = 0.5\n";
  Group group = make_single_group();
  const auto make_of = [&](const std::string& data, const train::MakeOptions& options) {
    base::Config config = base::Config::from_text(model + data);
    return train::read_recipe(config)->make(group, options);
  };
  const train::ModelFiles files =
      make_of(fmt::format("folder = \"{}/train\"", folder.path()), {}).files;
  EXPECT_THAT(train::labels_of(files.at("config.json")), ElementsAre("blue", "red", "LABEL_2"));
  std::filesystem::remove_all(folder.at("train/blue"));
  std::filesystem::rename(folder.at("train"), folder.at("new"));
  const train::MakeOptions judge{.kept = &files, .judges_only = true};
  for (const char* data :
       {"folder = \"{0}/new\"", "folder = \"{0}/train\"\nheld_out_folder = \"{0}/new\""}) {
    const train::Ingredients made = make_of(fmt::format(fmt::runtime(data), folder.path()), judge);
    EXPECT_EQ(first_of(*made.data.held_out, 0).target.item<int64_t>(), 1) << data;
  }
  std::filesystem::rename(folder.at("new/red"), folder.at("new/green"));
  EXPECT_THAT([&] { make_of(fmt::format("folder = \"{}/new\"", folder.path()), judge); },
              ThrowsMessage<UsageError>(HasSubstr("the folder \"green\"")));
}

TEST(PictureLearning, AShareOfAFolderIsHeldOutAsItIs) {
  const test::TempFolder folder;
  write_pictures(folder.at("train"), 10);
  const std::string data = fmt::format("folder = \"{}/train\"\n", folder.path());
  const train::Ingredients made = make(data + "held_out_share = 0.25");
  EXPECT_EQ(made.data.train->size(), 15);
  EXPECT_EQ(made.data.held_out->size(), 5);
  EXPECT_EQ(made.held_out, "judged by 5 of the 20 pictures, drawn with data.held_out_seed = 1");
  EXPECT_TRUE(first_of(*made.data.held_out, 1).input.equal(first_of(*made.data.held_out, 2).input));
  EXPECT_FALSE(first_of(*made.data.train, 1).input.equal(first_of(*made.data.train, 2).input));
  EXPECT_EQ(make(data + "held_out_share = 0").data.held_out, nullptr);
  EXPECT_THAT(
      [&] {
        base::Config config = base::Config::from_text(
            "recipe = \"resnet50\"\n[model]\nconfig = \"resnet18\"\n"
            "num_classes = 1\n[data]\n" +
            data);
        Group group = make_single_group();
        train::read_recipe(config)->make(group);
      },
      ThrowsMessage<UsageError>(
          HasSubstr("has 2 classes, which is more than model.num_classes = 1")));
}

TEST(PictureLearning, OneClassIsNothingToLearn) {
  const test::TempFolder folder;
  write_pictures(folder.at("data/train"), 2);  // data.folder should have been data/train
  const std::string data = fmt::format("folder = \"{}/data\"\n", folder.path());
  EXPECT_THAT([&] { make(data); },
              ThrowsMessage<UsageError>(HasSubstr("has one class only (\"train\")")));
}

TEST(PictureLearning, APictureThatCannotBeReadIsFatalOrLeftOut) {
  const test::TempFolder folder;
  write_pictures(folder.at("train"), 8);
  write_pictures(folder.at("judge"), 2);
  folder.file("train/red/broken.jpg", "no picture at all");
  EXPECT_THAT([&] { train(folder.path()); },
              ThrowsMessage<FormatError>(HasSubstr("red/broken.jpg")));
  const TrainResult result = train(folder.path(), "on_corrupt = \"skip\"");
  EXPECT_EQ(result.steps, 16);
  EXPECT_TRUE(std::isfinite(result.last.loss));
}

}  // namespace
}  // namespace lockstep
