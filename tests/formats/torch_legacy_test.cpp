#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "formats/little_endian.h"
#include "formats/support.h"
#include "formats/torch/torch_file.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using namespace std::string_literals;

formats::TorchFile read(std::string_view bytes) {
  return formats::read_torch(test::source_of(bytes));
}

TEST(TorchLegacy, ReadsWhatTheZipOfTheSameTensorsHolds) {
  const std::string zip = test::golden("state_dict.pth");
  const std::string stream = test::golden("legacy.pth");
  const formats::TorchFile expected = read(zip);
  const formats::TorchFile file = read(stream);
  EXPECT_FALSE(file.has_checksums);
  ASSERT_EQ(file.tensors.size(), expected.tensors.size());
  for (size_t i = 0; i < file.tensors.size(); ++i) {
    const formats::TensorInfo& a = expected.tensors[i];
    const formats::TensorInfo& b = file.tensors[i];
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.dtype, b.dtype) << a.name;
    EXPECT_EQ(a.shape, b.shape) << a.name;
    EXPECT_EQ(a.strides, b.strides) << a.name;
    EXPECT_EQ(zip.substr(a.offset_bytes, a.size_bytes), stream.substr(b.offset_bytes, b.size_bytes))
        << a.name;
  }
}

TEST(TorchLegacy, ReadsAStorageThatLiesInAnother) {
  const std::string bytes = test::golden("legacy_view.pth");
  const formats::TorchFile file = read(bytes);
  ASSERT_EQ(file.tensors.size(), 2u);
  EXPECT_EQ(file.tensors[1].name, "part");
  EXPECT_EQ(file.tensors[1].storage, file.tensors[0].storage);
  EXPECT_EQ(file.tensors[1].offset_bytes, file.tensors[0].offset_bytes + 5 * sizeof(float));
  EXPECT_EQ(file.tensors[1].size_bytes, 4 * sizeof(float));
}

// A stream of one tensor of two floats, whose parts can be spoilt one by one.
struct Stream {
  std::string magic = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."s;
  std::string version = "\x80\x02M\xe9\x03."s;
  std::string little = "\x88";
  std::string id_tail = "K\x02N";  // number of elements, view_metadata
  std::string keys = "X\x01\0\0\0k"s;
  uint64_t count = 2;
  std::string data = "12345678";

  std::string file() const {
    std::string bytes = magic + version + "\x80\x02}X\x0d\0\0\0little_endian"s + little + "s.";
    bytes += "\x80\x02"s +
             "ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\n"s +
             "X\x01\0\0\0kX\x03\0\0\0cpu"s + id_tail + "tQK\0(K\x02t(K\x01t\x89}tR."s;
    bytes += "\x80\x02](" + keys + "e.";
    formats::append_number<uint64_t>(bytes, count);
    return bytes + data;
  }
};

TEST(TorchLegacy, ReadsPicklesLongerThanUsual) {
  Stream stream;
  stream.little = "\x88s"s;  // and a text of two megabytes beside it
  stream.little += "X\x01\0\0\0aX\0\0\x20\0"s + std::string(2u << 20, 'a');
  EXPECT_EQ(read(stream.file()).tensors.size(), 1u);
}

TEST(TorchLegacy, RefusesEveryTruncation) {
  test::for_each_cut(test::golden("legacy.pth"), [](std::string_view cut) {
    EXPECT_NE(test::refusal([&] { read(cut); }), "") << cut.size() << " bytes";
  });
}

}  // namespace
}  // namespace lockstep
