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
