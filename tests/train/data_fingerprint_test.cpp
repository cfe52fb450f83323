// What data a run is known by: what is seen, what is not, and at what price.
#include "train/data_fingerprint.h"

#include <algorithm>
#include <fcntl.h>
#include <filesystem>
#include <string>
#include <unistd.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/stopwatch.h"
#include "support/temp_folder.h"
#include "train/model_files.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

class DataFingerprint : public testing::Test {
 protected:
  std::string of(const std::vector<std::string>& locations) {
    return train::fingerprint_sources({{.key = "data.text", .locations = locations}}, group_);
  }
  std::string change(const std::string& then, const std::string& now) const {
    return train::fingerprint_difference(then, now);
  }

  const test::TempFolder folder_;
  Group group_ = make_single_group();
};

TEST_F(DataFingerprint, ATextThatIsReversedOrCutIsAnother) {
  std::string text;
  for (int i = 0; text.size() < 10'000; ++i) {
    text += std::to_string(i) + " ";
  }
  const std::string file = folder_.file("a.txt", text);
  const std::string then = of({file});
  EXPECT_EQ(change(then, of({file})), "");
  folder_.file("a.txt", {text.rbegin(), text.rend()});
  EXPECT_EQ(change(then, of({file})),
            "data.text is as long as before, but its content is another now");
  folder_.file("a.txt", text.substr(0, text.size() / 2));
  EXPECT_EQ(change(then, of({file})),
            fmt::format("data.text had {} bytes and has {} now", text.size(), text.size() / 2));
  std::string one_letter = text;
  one_letter[5000] ^= 1;
  folder_.file("a.txt", one_letter);
  EXPECT_NE(change(then, of({file})), "");
}

TEST_F(DataFingerprint, WhereTheFilesLieDoesNotMatterButTheirOrderDoes) {
  std::filesystem::create_directories(folder_.at("moved"));
  const std::string a = folder_.file("a.txt", "first "), b = folder_.file("b.txt", "second");
  const std::string there = folder_.file("moved/z.txt", "first ");
  EXPECT_EQ(change(of({a, b}), of({there, b})), "");
  EXPECT_NE(change(of({a, b}), of({b, a})), "");
  const std::string longer = folder_.file("c.txt", "first s"),
                    shorter = folder_.file("d.txt", "econd");
  EXPECT_NE(change(of({a, b}), of({longer, shorter})), "") << "files end elsewhere";
  EXPECT_EQ(change(of({a}), of({a, b})), "data.text had 1 files and has 2 now");
}

TEST_F(DataFingerprint, AFolderIsItsNamesSizesAndContent) {
  const std::string root = folder_.at("pictures");
  std::filesystem::create_directories(root + "/cat");
  std::filesystem::create_directories(root + "/dog");
  folder_.file("pictures/cat/1.jpg", "111");
  folder_.file("pictures/dog/2.jpg", "22");
  const auto look = [&] {
    return train::fingerprint_sources(
        {{.key = "data.folder",
          .locations = {root},
          .counts = [](const std::string& path) { return path.ends_with(".jpg"); }}},
        group_);
  };
  const std::string then = look();
  folder_.file("pictures/cat/notes.txt", "no picture");
  EXPECT_EQ(change(then, look()), "");
  std::filesystem::rename(root + "/cat/1.jpg", root + "/dog/1.jpg");
  EXPECT_THAT(change(then, look()), HasSubstr("other names or sizes"));
  std::filesystem::rename(root + "/dog/1.jpg", root + "/cat/1.jpg");
  EXPECT_EQ(change(then, look()), "");
  folder_.file("pictures/cat/1.jpg", "112");
  EXPECT_THAT(change(then, look()), HasSubstr("content"));
}

// Of a large file some blocks are read: its ends, its length and what changes it all over are seen.
TEST_F(DataFingerprint, ALargeFileIsSampled) {
  constexpr off_t kBytes = off_t{8} << 30;  // a hole: it takes no room
  const std::string file = folder_.file("large.bin", "x");
  ASSERT_EQ(::truncate(file.c_str(), kBytes), 0);
  const base::Stopwatch watch;
  const std::string then = of({file});
  EXPECT_LT(watch.seconds(), 10) << "8 GiB are not read";
  const base::UniqueFd fd = base::open_file(file, O_WRONLY);
  ASSERT_EQ(::pwrite(fd.get(), "y", 1, kBytes - 1), 1);
  EXPECT_NE(change(then, of({file})), "") << "the last byte";
  ASSERT_EQ(::pwrite(fd.get(), "\0", 1, kBytes - 1), 1);
  EXPECT_EQ(change(then, of({file})), "");
  ASSERT_EQ(::truncate(file.c_str(), kBytes / 2), 0);
  EXPECT_THAT(change(then, of({file})), HasSubstr("bytes"));
}

TEST_F(DataFingerprint, SourcesThatComeAndGoAreNamed) {
  const std::string file = folder_.file("a.txt", "x");
  const auto look = [&](std::vector<train::DataSource> sources) {
    return train::fingerprint_sources(sources, group_);
  };
  const train::DataSource train{.key = "data.train", .locations = {file}};
  const train::DataSource held_out{.key = "data.held_out", .locations = {file}};
  EXPECT_THAT(change(look({train}), look({train, held_out})), HasSubstr("no data.held_out"));
  EXPECT_THAT(change(look({train, held_out}), look({train})), HasSubstr("a data.held_out"));
  EXPECT_THAT(change(look({{.key = "data.tokenizer", .locations = {}, .word = "bytes"}}),
                     look({{.key = "data.tokenizer", .locations = {file}}})),
              HasSubstr("was \"bytes\" and is files now"));
  EXPECT_THROW(of({folder_.at("none")}), IoError);
  EXPECT_NE(change("{}", "no JSON"), "");
}

std::shared_ptr<const Dataset> numbers(int64_t size, double scale = 1) {
  const at::Tensor input = at::arange(size, at::kFloat).mul(scale);
  return make_dataset({input.unsqueeze(1), input.to(at::kLong)});
}

TEST_F(DataFingerprint, DataWithoutFilesAreKnownBySamples) {
  const auto of_data = [&](std::shared_ptr<const Dataset> train,
                           std::shared_ptr<const Dataset> held_out = nullptr) {
    return train::fingerprint_samples({.train = train, .held_out = held_out}, group_);
  };
  for (const int64_t size : {1, 2, 31, 32, 33, 1000}) {
    EXPECT_EQ(of_data(numbers(size)), of_data(numbers(size)));
    EXPECT_THAT(change(of_data(numbers(size)), of_data(numbers(size + 1))), HasSubstr("samples"));
    EXPECT_NE(of_data(numbers(size)), of_data(numbers(size), numbers(size)));
  }
  EXPECT_THAT(change(of_data(numbers(1000)), of_data(numbers(1000, 2))), HasSubstr("content"));
}

std::shared_ptr<const Dataset> weighted(const char* name, double weight) {
  const at::Tensor input = at::arange(40, at::kFloat);
  return make_dataset(
      {.input = input, .target = input.to(at::kLong), .more = {{name, input * weight}}});
}

TEST_F(DataFingerprint, CoversTensorsOfEveryName) {
  const auto of_data = [&](std::shared_ptr<const Dataset> train) {
    return train::fingerprint_samples({.train = std::move(train), .held_out = nullptr}, group_);
  };
  const std::string before = of_data(weighted("weight", 2));
  EXPECT_EQ(change(before, of_data(weighted("weight", 2))), "");
  EXPECT_THAT(change(before, of_data(weighted("weight", 3))),
              HasSubstr("besides input and target"));
  EXPECT_THAT(change(before, of_data(weighted("mask", 2))), HasSubstr("besides input and target"));
}

TEST_F(DataFingerprint, ACheckpointOfAVersionWithTwoTensorsKnowsThese) {
  const auto of_data = [&](std::shared_ptr<const Dataset> train) {
    return train::fingerprint_samples({.train = std::move(train), .held_out = nullptr}, group_);
  };
  // What such a version wrote about numbers(5).
  const std::string then =
      R"({"train":{"samples":5,"content":"b50adb31e11289b3d3352a96275fa68b"}})";
  EXPECT_EQ(change(then, of_data(numbers(5))), "");
  EXPECT_THAT(change(then, of_data(numbers(5, 2))), HasSubstr("content"));
}

// Another picture for the same key each time.
class Moody : public Dataset {
 public:
  int64_t size() const override { return 5; }
  Batch batch(std::span<const SampleKey> samples) const override {
    const at::Tensor row = at::full({static_cast<int64_t>(samples.size())}, ++count_, at::kLong);
    return {row, row};
  }

 private:
  mutable int64_t count_ = 0;
};

TEST_F(DataFingerprint, DataThatAreNeverTheSameAreKnownByTheirNumber) {
  const TrainerData data{.train = std::make_shared<Moody>(), .held_out = nullptr};
  EXPECT_EQ(train::fingerprint_samples(data, group_), train::fingerprint_samples(data, group_));
}

}  // namespace
}  // namespace lockstep
