#include <filesystem>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/data/image_data.h>
#include <lockstep/data/loader.h>

#include "data/data_support.h"
#include "pictures/picture_files.h"
#include "support/refusal.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using test::gradient;
using test::jpeg_bytes;
using test::pax_record;
using test::png_bytes;
using test::refusal;
using test::tar_bytes;
using test::TarEntry;
using test::TempFolder;
using ::testing::AllOf;
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

// A Mac leaves "._NAME" on foreign disks, Jupyter a folder of copies.
TEST(ImageFolder, HiddenFilesAndFoldersAreNoPictures) {
  const TempFolder folder;
  const std::string path = make_folder(folder);
  for (const char* name : {"cat/._a.jpeg", "cat/.cache/b.png", ".ipynb_checkpoints/a.jpg"}) {
    std::filesystem::create_directories(
        std::filesystem::path(folder.at(std::string("pets/") + name)).parent_path());
    folder.file(std::string("pets/") + name, "no picture");
  }
  const auto data = open_image_folder(path, {.size = 8});
  EXPECT_EQ(data->size(), 3);
  EXPECT_THAT(data->classes(), ElementsAre("cat", "dog"));
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

TEST(ImageFolder, GivenClassesNumberTheFoldersByName) {
  const TempFolder folder;
  const std::string path = make_folder(folder);
  const auto data = open_image_folder(path, {.size = 8, .classes = {"dog", "bird", "cat"}});
  EXPECT_THAT(data->classes(), ElementsAre("dog", "bird", "cat"));
  EXPECT_TRUE(data->batch(keys({0, 1, 2})).target.equal(at::tensor({2, 0, 0}, at::kLong)));
  EXPECT_THAT(refusal([&] {
                open_image_folder(path, {.classes = {"bird", "cat"}});
              }),
              AllOf(HasSubstr("the folder \"dog\" in " + path), HasSubstr("(bird, cat)")));
  EXPECT_THAT(refusal([&] {
                open_image_folder(path, {.classes = {"cat", "dog", "cat"}});
              }),
              HasSubstr("a name twice"));
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

// Red is right and blue is wrong.
void expect_red(const Dataset& data, const std::vector<int64_t>& labels) {
  ASSERT_EQ(data.size(), std::ssize(labels));
  for (int64_t i = 0; i < data.size(); ++i) {
    const Batch batch = data.batch(keys({i}));
    EXPECT_EQ(batch.target.item<int64_t>(), labels[static_cast<size_t>(i)]) << "sample " << i;
    EXPECT_GT(batch.input[0][0].mean().item<float>(), 1.5) << "sample " << i;
  }
}

TEST(ImageShards, TheKindIsAllBehindTheFirstDot) {
  const TempFolder folder;
  const std::string right = flat_jpeg(255, 0, 0);
  const std::string wrong = flat_jpeg(0, 0, 255);
  const auto data = open_image_shards({folder.file("a.tar", tar_bytes({{"0.jpg", right},
                                                                       {"0.mask.png", wrong},
                                                                       {"0.json", "{\"label\": 1}"},
                                                                       {"0.meta.json", "{}"},
                                                                       {"1.thumb.jpg", wrong},
                                                                       {"1.JPG", right},
                                                                       {"1.old.cls", "7"},
                                                                       {"1.cls", "2"},
                                                                       {"1.new.cls", "8"},
                                                                       {"2.cls", "3"},
                                                                       {"2.jpg", right},
                                                                       {"2.png", wrong},
                                                                       {"b.d/3.jpg", right},
                                                                       {"b.d/3.cls", "4"}}))},
                                      {.size = 8});
  expect_red(*data, {1, 2, 3, 4});
}

TEST(ImageShards, UnrelatedFilesAreNoError) {
  const TempFolder folder;
  const std::string right = flat_jpeg(255, 0, 0);
  const std::string shard = folder.file("a.tar", tar_bytes({{"LICENSE", "of all"},
                                                            {"README.md", "words"},
                                                            {"index.json", "{\"label\": 9}"},
                                                            {"__info__.json", "{}"},
                                                            {"__worker__/a.cls", "1"},
                                                            {"link.jpg", "", '2'},
                                                            {"pipe.cls", "", '6'},
                                                            {"0.jpg", right},
                                                            {"._0.jpg", "of a Mac"},
                                                            {"0.cls", "5"},
                                                            {".DS_Store", "x"},
                                                            {"train/stats.txt", "y"}}));
  std::vector<std::string> lines;
  log::set_sink([&](log::Level, std::string_view line) { lines.emplace_back(line); });
  expect_red(*open_image_shards({shard}, {.size = 8}), {5});
  log::set_sink({});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], HasSubstr("a.tar: 8 files belong to no sample"));
  const std::string twice =
      folder.file("c.tar", tar_bytes({{"0.jpg", right}, {"0.cls", "1"}, {"0.JPG", right}}));
  EXPECT_THAT([&] { open_image_shards({twice}); },
              ThrowsMessage<FormatError>(HasSubstr("sample 0 has two members of the kind .jpg")));
  const std::string nothing = folder.file("b.tar", tar_bytes({{"README.md", "words"}}));
  EXPECT_THAT(refusal([&] { open_image_shards({nothing}); }), HasSubstr("no sample in 1 shards"));
}

// As Python's tarfile (PAX, since 3.8) and GNU tar write them.
TEST(ImageShards, NamesMayComeFromExtendedHeaders) {
  const TempFolder folder;
  const std::string right = flat_jpeg(255, 0, 0);
  const std::string number = "6";
  const std::string cafe = "caf\xc3\xa9/1";
  const std::string deep = std::string(150, 'd') + "/2";
  const std::string long_name = deep + ".jpg" + '\0';
  const auto data = open_image_shards(
      {folder.file(
          "a.tar",
          tar_bytes({{"pax_global_header", pax_record("comment", "of git"), 'g'},
                     {"x", pax_record("mtime", "1.5") + pax_record("path", cafe + ".jpg"), 'x'},
                     {"caf?.jpg", right},
                     {"x", pax_record("path", cafe + ".cls") + pax_record("SCHILY.x", "\n="), 'x'},
                     {"caf?.cls", number},
                     {"././@LongLink", long_name, 'L'},
                     {"ddd.jpg", right},
                     {"././@LongLink", deep + ".cls", 'L'},
                     {"ddd.cls", number}}))},
      {.size = 8});
  expect_red(*data, {6, 6});
  const auto says = [&](const TarEntry& entry) {
    const std::string shard = folder.file("b.tar", tar_bytes({entry, {"0.jpg", right}}));
    EXPECT_THAT([&] { open_image_shards({shard}); },
                ThrowsMessage<FormatError>(HasSubstr("extended header at offset 512")));
  };
  says({"x", pax_record("GNU.sparse.major", "1"), 'x'});
  says({"x", pax_record("size", "1x"), 'x'});
  says({"x", "9 path=a.jpg\n", 'x'});
  says({"x", "99 path=a.jpg\n", 'x'});
  says({"g", pax_record("path", "a.jpg"), 'g'});
}

TEST(ImageShards, AnyBytesInAnExtendedHeaderAreReadOrRefused) {
  const TempFolder folder;
  const std::string records = pax_record("path", "a/1.jpg") + pax_record("size", "4");
  const std::string whole = tar_bytes({{"x", records, 'x'}, {"0.jpg", "data"}, {"0.cls", "1"}});
  int num_refused = 0;
  for (size_t i = 0; i < records.size(); ++i) {
    for (const char byte : {'\0', ' ', '=', '\n', '0', '9', '\xff'}) {
      std::string bytes = whole;
      bytes[512 + i] = byte;
      try {
        open_image_shards({folder.file("a.tar", bytes)});
      } catch (const Error&) {
        ++num_refused;
      }
    }
  }
  EXPECT_GT(num_refused, 50);
}

TEST(ImageShards, ALabelThatIsNotBelowTheClassesIsNamed) {
  const TempFolder folder;
  const std::string picture = flat_jpeg(1, 2, 3);
  const std::string shard = folder.file("a.tar", tar_bytes({{"k.jpg", picture}, {"k.cls", "7"}}));
  EXPECT_EQ(open_image_shards({shard}, {.num_classes = 8})->batch(keys({0})).target.item<int64_t>(),
            7);
  const auto data =
      open_image_shards({shard}, {.on_corrupt = CorruptSample::Skip, .num_classes = 7});
  EXPECT_THAT([&] { data->batch(keys({0})); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("a.tar: sample k has the label 7"),
                                              HasSubstr("model.num_classes"))));
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
  says(2, "sample c has a label that is not a whole number");
  says(3, "sample d: \"label\" is missing");
  says(4, "sample e: 10 bytes that begin neither");
  says(5, "sample f has a label that is not a whole number");
  const auto skipping = open_image_shards({shard}, {.on_corrupt = CorruptSample::Skip});
  EXPECT_TRUE(skipping->batch(keys({0, 1, 2})).target.eq(kCorruptTarget).all().item<bool>());
  EXPECT_EQ(skipping->num_corrupt(), 3);
  EXPECT_THAT(refusal([] { open_image_shards({}); }), HasSubstr("no sample in 0 shards"));
  EXPECT_THROW(open_image_shards({folder.at("absent.tar")}), IoError);
  EXPECT_THROW(open_image_shards({folder.file("b.tar", std::string(600, 'x'))}), FormatError);
}

}  // namespace
}  // namespace lockstep
