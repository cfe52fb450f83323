#include "formats/archive/inflate_npz.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "formats/npy.h"
#include "formats/support.h"
#include "formats/weight_file.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<base::ByteSource> inflated(std::string_view bytes,
                                           const formats::InflateLimits& limits = {}) {
  return formats::inflate_npz(std::make_unique<base::MemorySource>(test::source_of(bytes)), limits);
}

std::string values_of(const base::ByteSource& source, const formats::TensorInfo& tensor) {
  return source.read_text(tensor.offset_bytes, tensor.size_bytes);
}

TEST(InflateNpz, ReadsWhatNumpyCompressed) {
  const std::string stored = test::golden("arrays.npz");
  const std::string deflated = test::golden("deflated.npz");
  const base::MemorySource expected = test::source_of(stored);
  const auto source = inflated(deflated);
  EXPECT_EQ(source->name(), "x");
  const std::vector<formats::TensorInfo> expected_arrays =
      formats::read_npz(formats::ZipReader(expected));
  const std::vector<formats::TensorInfo> arrays = formats::read_npz(formats::ZipReader(*source));
  ASSERT_EQ(arrays.size(), expected_arrays.size() + 1);
  for (size_t i = 0; i < expected_arrays.size(); ++i) {
    EXPECT_EQ(arrays[i].name, expected_arrays[i].name);
    EXPECT_EQ(arrays[i].strides, expected_arrays[i].strides);
    EXPECT_EQ(values_of(*source, arrays[i]), values_of(expected, expected_arrays[i]));
  }
  EXPECT_THAT(arrays.back().shape, ElementsAre(100, 100));
  EXPECT_EQ(values_of(*source, arrays.back()), std::string(40'000, '\0'));
  formats::verify_checksums(*source, formats::read_weight_file(*source));
}

TEST(InflateNpz, LeavesOtherFilesAsTheyAre) {
  for (const char* name : {"arrays.npz", "state_dict.pth", "small.safetensors", "tokens.bin"}) {
    const std::string bytes = test::golden(name);
    auto source = std::make_unique<base::MemorySource>(test::source_of(bytes));
    const base::ByteSource* const before = source.get();
    EXPECT_EQ(formats::inflate_npz(std::move(source)).get(), before) << name;
  }
}

TEST(InflateNpz, KeepsToItsLimit) {
  const std::string bytes = test::golden("deflated.npz");
  EXPECT_THAT(test::refusal([&] { inflated(bytes, {.total_bytes = 40'000}); }),
              HasSubstr("more than 40000 bytes"));
}

TEST(InflateNpz, RefusesEveryTruncationAndSeesEveryFlippedBit) {
  const std::string bytes = test::golden("deflated.npz");
  test::for_each_cut(bytes, [](std::string_view cut) {
    EXPECT_NE(test::refusal([&] { formats::read_npz(formats::ZipReader(*inflated(cut))); }), "")
        << cut.size();
  });
  const base::MemorySource source = test::source_of(bytes);
  const formats::ZipReader zip(source, {.may_deflate = true});
  const formats::ZipEntry& entry =
      zip.entries().front();  // its last byte has bits that mean nothing
  test::for_each_flip(bytes, entry.data_offset, entry.data_offset + entry.file_bytes() - 1,
                      [](std::string_view flipped, size_t byte) {
                        EXPECT_NE(test::refusal([&] { inflated(flipped); }), "") << byte;
                      });
}

}  // namespace
}  // namespace lockstep
