#include "formats/npy.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "formats/little_endian.h"
#include "formats/support.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;
using namespace std::string_literals;

std::string npy(const std::string& header, size_t data_bytes, char version = 1) {
  std::string bytes = "\x93NUMPY"s + version + '\0';
  if (version == 1) {
    formats::append_number<uint16_t>(bytes, static_cast<uint16_t>(header.size()));
  } else {
    formats::append_number<uint32_t>(bytes, static_cast<uint32_t>(header.size()));
  }
  return bytes + header + std::string(data_bytes, 'd');
}

std::string header(const std::string& descr, const std::string& shape) {
  return "{'descr': '" + descr + "', 'fortran_order': False, 'shape': (" + shape + "), }  \n";
}

TEST(Npy, ReadsWhatNumpyWrote) {
  const std::string bytes = test::golden("array.npy");
  const formats::TensorInfo array = formats::read_npy(test::source_of(bytes));
  EXPECT_EQ(array.dtype, formats::DType::F32);
  EXPECT_THAT(array.shape, ElementsAre(2, 3));
  EXPECT_THAT(array.strides, IsEmpty());
  float values[6];
  ASSERT_EQ(array.size_bytes, sizeof values);
  std::memcpy(values, bytes.data() + array.offset_bytes, sizeof values);
  EXPECT_THAT(values, ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(Npy, ReadsAnArchive) {
  const std::string bytes = test::golden("arrays.npz");
  const base::MemorySource source = test::source_of(bytes);
  const std::vector<formats::TensorInfo> arrays = formats::read_npz(formats::ZipReader(source));
  ASSERT_EQ(arrays.size(), 3u);
  EXPECT_EQ(arrays[0].name, "ids");
  EXPECT_EQ(arrays[0].dtype, formats::DType::I64);
  EXPECT_EQ(arrays[1].name, "fortran");
  EXPECT_THAT(arrays[1].strides, ElementsAre(1, 2));
  EXPECT_EQ(arrays[2].name, "scalar");
  EXPECT_THAT(arrays[2].shape, IsEmpty());
  const std::string torch = test::golden("state_dict.pth");
  const base::MemorySource other = test::source_of(torch);
  EXPECT_THAT(test::refusal([&] { formats::read_npz(formats::ZipReader(other)); }),
              HasSubstr("is not an array"));
}

TEST(Npy, ReadsEveryVersionOfTheHeader) {
  for (const char version : {1, 2, 3}) {
    const std::string bytes = npy(header("<f4", "2,"), 8, version);
    EXPECT_THAT(formats::read_npy(test::source_of(bytes)).shape, ElementsAre(2));
  }
}

TEST(Npy, RefusesEveryTruncation) {
  test::for_each_cut(test::golden("array.npy"), [](std::string_view cut) {
    EXPECT_NE(test::refusal([&] { formats::read_npy(test::source_of(cut)); }), "") << cut.size();
  });
}

TEST(NpyWriter, WritesWhatNumpyWrites) {
  const test::TempFolder folder;
  const std::string golden = test::golden("array.npy");
  formats::NpyWriter writer(folder.at("a.npy"), formats::DType::F32, std::vector<int64_t>{2, 3});
  writer.append(std::as_bytes(std::span(golden)).last(24));
  writer.finish();
  EXPECT_EQ(test::file_text(folder.at("a.npy")), golden);
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {4}, {0, 3}}) {
    formats::NpyWriter other(folder.at("b.npy"), formats::DType::U8, shape);
    other.append(
        std::as_bytes(std::span(golden)).first(*formats::checked_bytes(formats::DType::U8, shape)));
    other.finish();
    const std::string bytes = test::file_text(folder.at("b.npy"));
    EXPECT_EQ(formats::read_npy(test::source_of(bytes)).shape, shape);
  }
}

TEST(NpyWriter, RefusesWhatNumpyLacksAndAWrongNumberOfBytes) {
  const test::TempFolder folder;
  const std::vector<int64_t> shape{2};
  EXPECT_THAT([&] { formats::NpyWriter(folder.at("a.npy"), formats::DType::BF16, shape); },
              ThrowsMessage<UsageError>(HasSubstr("NumPy cannot hold BF16 [2]")));
  formats::NpyWriter writer(folder.at("a.npy"), formats::DType::U8, shape);
  EXPECT_THAT([&] { writer.finish(); },
              ThrowsMessage<UsageError>(HasSubstr("ends at offset 130, and bytes up to 128")));
}

}  // namespace
}  // namespace lockstep
