#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "formats/little_endian.h"
#include "formats/support.h"
#include "formats/torch/torch_file.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

formats::TorchFile read(std::string_view bytes) {
  return formats::read_torch(test::source_of(bytes));
}

const formats::TensorInfo* find(const formats::TorchFile& file, const std::string& name) {
  for (const formats::TensorInfo& tensor : file.tensors) {
    if (tensor.name == name) {
      return &tensor;
    }
  }
  return nullptr;
}

TEST(TorchTar, ReadsWhatTheZipOfTheSameTensorsHolds) {
  const std::string zip = test::golden("state_dict.pth");
  const std::string tar = test::golden("tar.pth");
  const formats::TorchFile expected = read(zip);
  const formats::TorchFile file = read(tar);
  EXPECT_FALSE(file.has_checksums);
  size_t num_equal = 0;
  for (const formats::TensorInfo& a : expected.tensors) {
    if (const formats::TensorInfo* b = find(file, a.name)) {
      EXPECT_EQ(a.dtype, b->dtype) << a.name;
      EXPECT_EQ(a.shape, b->shape) << a.name;
      EXPECT_EQ(a.strides, b->strides) << a.name;
      EXPECT_EQ(zip.substr(a.offset_bytes, a.size_bytes),
                tar.substr(b->offset_bytes, b->size_bytes))
          << a.name;
      ++num_equal;
    }
  }
  EXPECT_EQ(num_equal, 6u);
  EXPECT_EQ(find(file, "wte.weight")->storage, find(file, "lm_head.weight")->storage);
}

TEST(TorchTar, ReadsAStorageThatLiesInAnother) {
  const std::string tar = test::golden("tar.pth");
  const formats::TorchFile file = read(tar);
  const formats::TensorInfo* tensor = find(file, "of_view");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->storage, find(file, "wte.weight")->storage);
  float values[2];
  ASSERT_EQ(tensor->size_bytes, sizeof values);
  std::memcpy(values, tar.data() + tensor->offset_bytes, sizeof values);
  EXPECT_THAT(values, ElementsAre(4, 5));
}

TEST(TorchTar, RefusesEveryTruncationAndEveryFlippedBitOfAHeader) {
  const std::string bytes = test::golden("tar.pth");
  const size_t end = bytes.find_last_not_of('\0') + 1;
  const size_t last_block = (end + 511) / 512 * 512;
  test::for_each_cut(bytes.substr(0, last_block + 512), [&](std::string_view cut) {
    EXPECT_NE(test::refusal([&] { read(cut); }), "") << cut.size() << " bytes";
  });
  for (size_t header = 0; header < last_block; header += 512) {
    if (std::string_view(bytes).substr(header + 257, 5) != "ustar") {
      continue;
    }
    test::for_each_flip(bytes, header, header + 512, [&](std::string_view flipped, size_t byte) {
      const bool is_checksum = byte >= header + 148 && byte < header + 156;  // ends in any space
      EXPECT_TRUE(is_checksum || test::refusal([&] { read(flipped); }) != "") << "byte " << byte;
    });
  }
}

}  // namespace
}  // namespace lockstep
