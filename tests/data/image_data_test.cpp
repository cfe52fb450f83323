#include <filesystem>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/data/image_data.h>
#include <lockstep/data/loader.h>

#include "data/data_support.h"
#include "data/picture_files.h"
#include "support/refusal.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using test::gradient;
using test::jpeg_bytes;
using test::png_bytes;
using test::refusal;
using test::tar_bytes;
using test::TempFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string flat_jpeg(int red, int green, int blue) {
  return jpeg_bytes({.width = 40, .height = 30, .colour = [=](int, int) {
                       return test::Rgb{red, green, blue};
                     }});
}

// Two classes, nested folders, names in capitals and files that are no pictures.
std::string make_folder(const TempFolder& folder) {
  for (const char* name : {"pets/cat", "pets/dog/young", "pets/.git"}) {
    fs::create_directories(folder.at(name));
  }
  folder.file("pets/notes.txt", "no picture");
  folder.file("pets/top.jpg", "in no class");
  folder.file("pets/cat/list.txt", "no picture");
  folder.file("pets/dog/b.JPG", flat_jpeg(0, 0, 255));
  folder.file("pets/dog/young/c.png", png_bytes(gradient(64, 48)));
  folder.file("pets/cat/a.jpeg", flat_jpeg(255, 0, 0));
  return folder.at("pets");
}

std::vector<SampleKey> keys(std::initializer_list<int64_t> indices, uint64_t seed = 0) {
  std::vector<SampleKey> result;
  for (const int64_t index : indices) {
    result.push_back({.index = index, .seed = seed});
  }
  return result;
}

TEST(ImageFolder, ClassesAreFoldersInTheOrderOfTheirNames) {
  const TempFolder folder;
  const auto data = open_image_folder(make_folder(folder), {.size = 16});
  EXPECT_EQ(data->size(), 3);
  EXPECT_THAT(data->classes(), ElementsAre("cat", "dog"));
  const Batch batch = data->batch(keys({1, 0, 2}));
  EXPECT_EQ(batch.input.sizes(), (std::vector<int64_t>{3, 3, 16, 16}));
  EXPECT_TRUE(batch.target.equal(at::tensor({1, 0, 1}, at::kLong)));
  // Blue, then red, normalised with ImageNet's mean and standard deviation.
  EXPECT_NEAR(batch.input[0][2].mean().item<float>(), (1 - 0.406f) / 0.225f, 0.05);
  EXPECT_NEAR(batch.input[0][0].mean().item<float>(), (0 - 0.485f) / 0.229f, 0.05);
  EXPECT_NEAR(batch.input[1][0].mean().item<float>(), (1 - 0.485f) / 0.229f, 0.05);
}

TEST(ImageFolder, AugmentationIsAPureFunctionOfTheSeed) {
  const TempFolder folder;
  const auto data = open_image_folder(make_folder(folder), {.size = 24, .augment = true});
  const at::Tensor first = data->batch(keys({2}, 11)).input;
  EXPECT_TRUE(first.equal(data->batch(keys({2}, 11)).input));
  EXPECT_FALSE(first.equal(data->batch(keys({2}, 12)).input));
  const auto read = [&](int workers) {
    Loader loader(data, {.num_workers = workers});
    loader.start({2, 2, 0, 1}, 3, 1, 7);
    return at::cat({loader.next()->input, loader.next()->input});
  };
  EXPECT_TRUE(read(0).equal(read(3)));
  EXPECT_TRUE(open_image_folder(make_folder(folder), {.size = 24})
                  ->batch(keys({2}, 1))
                  .input.equal(
                      open_image_folder(make_folder(folder), {.size = 24})->batch(keys({2})).input))
      << "without augmentation the seed is of no use";
}

TEST(ImageFolder, ACorruptPictureIsFatalOrSkipped) {
  const TempFolder folder;
  const std::string path = make_folder(folder);
  const std::string whole = flat_jpeg(9, 9, 9);
  folder.file("pets/cat/a.jpeg", whole.substr(0, whole.size() - 2));
  EXPECT_THAT([&] { open_image_folder(path)->batch(keys({0})); },
              ThrowsMessage<FormatError>(HasSubstr("cat/a.jpeg: JPEG: it has no end mark")));
  const auto data = open_image_folder(path, {.size = 8, .on_corrupt = CorruptSample::Skip});
  std::vector<std::string> lines;
  log::set_sink([&](log::Level, std::string_view line) { lines.emplace_back(line); });
  for (int i = 0; i < 3; ++i) {
    const Batch batch = data->batch(keys({0, 1}));
    EXPECT_TRUE(batch.target.equal(at::tensor({kCorruptTarget, int64_t{1}})));
    EXPECT_EQ(batch.input[0].count_nonzero().item<int64_t>(), 0);
    EXPECT_NE(batch.input[1].count_nonzero().item<int64_t>(), 0);
  }
  log::set_sink({});
  EXPECT_EQ(data->num_corrupt(), 1);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], HasSubstr("sample 0 is skipped"));
}

TEST(ImageFolder, RefusesWhatCannotBe) {
  const TempFolder folder;
  const std::string path = make_folder(folder);
  EXPECT_THAT(refusal([&] { open_image_folder(path, {.size = 0}); }), HasSubstr("size is 0"));
  EXPECT_THAT(refusal([&] { open_image_folder(path, {.std = {1, 0, 1}}); }), HasSubstr("std of 0"));
  EXPECT_THAT(refusal([&] { open_image_folder(path + "/cat"); }), HasSubstr("has no CLASS/NAME"));
  EXPECT_THROW(open_image_folder(folder.at("absent")), IoError);
}

TEST(ImageShards, MembersOfAKeyAreASample) {
  const TempFolder folder;
  const std::string one =
      folder.file("a.tar", tar_bytes({{"train/", ""},
                                      {"train/0001.jpg", flat_jpeg(255, 0, 0)},
                                      {"train/0001.cls", "7\n"},
                                      {"train/0001.txt", "a caption"},
                                      {"train/0002.json", "{\"label\": 3, \"width\": 64}"},
                                      {"train/0002.png", png_bytes(gradient(64, 48))}}));
  const std::string two =
      folder.file("b.tar", tar_bytes({{"x.cls", "12"}, {"x.JPEG", flat_jpeg(0, 0, 255)}}));
  const auto data = open_image_shards({one, two}, {.size = 16});
  ASSERT_EQ(data->size(), 3);
  const Batch batch = data->batch(keys({2, 1, 0}));
  EXPECT_TRUE(batch.target.equal(at::tensor({12, 3, 7}, at::kLong)));
  EXPECT_NEAR(batch.input[0][2].mean().item<float>(), (1 - 0.406f) / 0.225f, 0.05);
}

TEST(ImageShards, SaysWhatIsWrongWithWhich) {
  const TempFolder folder;
  const std::string picture = flat_jpeg(1, 2, 3);
  const std::string shard = folder.file("a.tar", tar_bytes({{"a.jpg", picture},
                                                            {"b.cls", "1"},
                                                            {"c.jpg", picture},
                                                            {"c.cls", "one"},
                                                            {"d.jpg", picture},
                                                            {"d.json", "{\"class\": 1}"},
                                                            {"e.jpg", "no picture"},
                                                            {"e.cls", "1"},
                                                            {"f.jpg", picture},
                                                            {"f.cls", "-1"}}));
  const auto data = open_image_shards({shard});
  const auto says = [&](int64_t index, const char* what) {
    EXPECT_THAT([&] { data->batch(keys({index})); }, ThrowsMessage<FormatError>(HasSubstr(what)));
  };
  ASSERT_EQ(data->size(), 6);
  says(0, "a.tar: sample a has no label");
  says(1, "a.tar: sample b has no picture");
  says(2, "sample c has a label that is no whole number");
  says(3, "sample d: \"label\" is missing");
  says(4, "sample e: 10 bytes that begin neither");
  says(5, "sample f has a label that is no whole number");
  const auto skipping = open_image_shards({shard}, {.on_corrupt = CorruptSample::Skip});
  EXPECT_TRUE(skipping->batch(keys({0, 1, 2})).target.eq(kCorruptTarget).all().item<bool>());
  EXPECT_EQ(skipping->num_corrupt(), 3);
  EXPECT_THAT(refusal([] { open_image_shards({}); }), HasSubstr("no sample in 0 shards"));
  EXPECT_THROW(open_image_shards({folder.at("absent.tar")}), IoError);
  EXPECT_THROW(open_image_shards({folder.file("b.tar", std::string(600, 'x'))}), FormatError);
}

}  // namespace
}  // namespace lockstep
