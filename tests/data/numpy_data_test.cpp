#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/data/numpy_data.h>

#include "base/unique_fd.h"
#include "formats/archive/zip_writer.h"
#include "formats/npy.h"
#include "support/refusal.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using test::refusal;
using test::TempFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

template <typename T>
std::string write_npy(const std::string& path, formats::DType dtype, std::vector<int64_t> shape,
                      const std::vector<T>& values) {
  formats::NpyWriter writer(path, dtype, shape);
  writer.append(std::as_bytes(std::span(values)));
  writer.finish();
  return path;
}

const std::vector<SampleKey> kKeys{{.index = 2}, {.index = 0}};

TEST(NumpyData, RowsKeepTheirTypeAndTargetsBecomeInt64) {
  const TempFolder folder;
  const std::string input =
      write_npy<float>(folder.at("x.npy"), formats::DType::F32, {3, 2, 1}, {0, 1, 2, 3, 4, 5});
  const std::string target =
      write_npy<int32_t>(folder.at("y.npy"), formats::DType::I32, {3}, {7, 8, 9});
  const auto data = open_numpy(input, target);
  ASSERT_EQ(data->size(), 3);
  const Batch batch = data->batch(kKeys);
  EXPECT_TRUE(batch.input.equal(at::tensor({4.0f, 5.0f, 0.0f, 1.0f}).view({2, 2, 1})));
  EXPECT_TRUE(batch.target.equal(at::tensor({9, 7}, at::kLong)));
  const auto swapped = open_numpy(target, input);
  EXPECT_EQ(swapped->batch(kKeys).input.scalar_type(), at::kInt);
  EXPECT_EQ(swapped->batch(kKeys).target.scalar_type(), at::kFloat);
}

// numpy.savez of these arrays.
std::string write_npz(const TempFolder& folder, const char* input, const char* target) {
  const std::string path = folder.at("both.npz");
  formats::ZipWriter zip(path);
  for (const char* name : {input, target}) {
    const std::string array = base::read_file(
        write_npy<uint8_t>(folder.at("part.npy"), formats::DType::U8, {3, 2}, {0, 1, 2, 3, 4, 5}));
    zip.add(std::string(name) + ".npy", array);
  }
  zip.finish();
  return path;
}

TEST(NumpyData, ReadsBothFromOneNpz) {
  const TempFolder folder;
  const auto data = open_numpy(write_npz(folder, "target", "x"));
  const Batch batch = data->batch(kKeys);
  EXPECT_TRUE(batch.input.equal(at::tensor({4, 5, 0, 1}, at::kByte).view({2, 2})));
  EXPECT_EQ(batch.target.scalar_type(), at::kLong);
  EXPECT_THAT([&] { open_numpy(write_npz(folder, "input", "label")); },
              ThrowsMessage<FormatError>(HasSubstr("no array \"target\" or \"y\"")));
}

TEST(NumpyData, FurtherArraysOfAnNpzKeepNameAndType) {
  const TempFolder folder;
  const std::string path = folder.at("texts.npz");
  {
    formats::ZipWriter zip(path);
    const auto add = [&](const char* name, formats::DType dtype, std::vector<int64_t> shape,
                         const auto& values) {
      zip.add(std::string(name) + ".npy",
              base::read_file(write_npy(folder.at("part.npy"), dtype, std::move(shape), values)));
    };
    add("x", formats::DType::F32, {3, 1}, std::vector<float>{1, 2, 3});
    add("y", formats::DType::I32, {3}, std::vector<int32_t>{7, 8, 9});
    add("attention_mask", formats::DType::Bool, {3, 2}, std::vector<uint8_t>{1, 0, 1, 1, 0, 1});
    add("weights", formats::DType::I32, {3}, std::vector<int32_t>{40, 50, 60});
    add("short", formats::DType::I32, {2}, std::vector<int32_t>{1, 2});
    zip.finish();
  }
  const Batch batch = open_numpy(path, "", {.more = {"weights", "attention_mask"}})->batch(kKeys);
  EXPECT_THAT(batch.names(), ElementsAre("input", "target", "weights", "attention_mask"));
  EXPECT_TRUE(batch["weights"].equal(at::tensor({60, 40}, at::kInt)));
  EXPECT_TRUE(
      batch["attention_mask"].equal(at::tensor({0, 1, 1, 0}, at::kLong).ne(0).view({2, 2})));
  EXPECT_THAT(open_numpy(path)->batch(kKeys).names(), ElementsAre("input", "target"));
  EXPECT_THAT([&] { open_numpy(path, "", {.more = {"weigths"}}); },
              ThrowsMessage<FormatError>(
                  AllOf(HasSubstr("no array \"weigths\""), HasSubstr("mean weights?"))));
  EXPECT_THAT(refusal([&] { open_numpy(path, "", {.more = {"short"}}); }),
              HasSubstr("3 rows of input and 2 of \"short\""));
  EXPECT_THAT(refusal([&] { open_numpy(path, path, {.more = {"weights"}}); }),
              HasSubstr("in one .npz"));
}

TEST(NumpyData, RefusesWhatItCannotRead) {
  const TempFolder folder;
  const std::string three =
      write_npy<float>(folder.at("3.npy"), formats::DType::F32, {3}, {0, 1, 2});
  const std::string two = write_npy<float>(folder.at("2.npy"), formats::DType::F32, {2}, {0, 1});
  const std::string wide =
      write_npy<uint16_t>(folder.at("w.npy"), formats::DType::U16, {3}, {0, 1, 2});
  const std::string none = write_npy<float>(folder.at("0.npy"), formats::DType::F32, {0}, {});
  EXPECT_THAT(refusal([&] { open_numpy(three, two); }), HasSubstr("3 rows of input and 2 of"));
  EXPECT_THAT(refusal([&] { open_numpy(three); }), HasSubstr("has no targets"));
  EXPECT_THAT([&] { open_numpy(wide, three); }, ThrowsMessage<FormatError>(HasSubstr("U16 [3]")));
  EXPECT_THAT([&] { open_numpy(none, three); }, ThrowsMessage<FormatError>(HasSubstr("F32 [0]")));
  EXPECT_THROW(open_numpy(folder.at("absent.npy"), three), IoError);
}

}  // namespace
}  // namespace lockstep
