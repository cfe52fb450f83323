// The recipe "resnet50" on pictures in files, down to one that cannot be read.
#include <filesystem>
#include <random>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "data/picture_files.h"
#include "support/temp_folder.h"
#include "train/recipe.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// Mostly red and mostly blue ones, with noise.
void write_pictures(const std::string& folder, int num_each) {
  std::mt19937 dice(3);
  for (const bool is_red : {true, false}) {
    const std::string place = folder + (is_red ? "/red" : "/blue");
    std::filesystem::create_directories(place);
    for (int i = 0; i < num_each; ++i) {
      const test::PictureOptions picture{
          .width = 48, .height = 40, .colour = [&](int, int) {
            const auto noise = [&] { return static_cast<int>(dice() % 80); };
            return test::Rgb{(is_red ? 150 : 20) + noise(), 40 + noise(),
                             (is_red ? 20 : 150) + noise()};
          }};
      const std::string bytes = i % 4 == 0 ? test::png_bytes(picture) : test::jpeg_bytes(picture);
      const UniqueFd fd = open_file(fmt::format("{}/{}.{}", place, i, i % 4 == 0 ? "png" : "jpg"),
                                    O_WRONLY | O_CREAT);
      write_all(fd.get(), bytes.data(), bytes.size());
    }
  }
}

TrainResult train(const std::string& folder, const std::string& more = "") {
  Config config = Config::from_text(fmt::format(
      "recipe = \"resnet50\"\n[model]\nconfig = \"resnet18\"\n[train]\nbatch_size = 8\nlr = "
      "0.01\nepochs = 8\n"
      "[data]\nfolder = \"{0}/train\"\nheld_out_folder = \"{0}/judge\"\npicture_size = 32\n{1}",
      folder, more));
  const auto recipe = read_recipe(config);
  Group group = make_single_group();
  Ingredients made = recipe->make(group);
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
