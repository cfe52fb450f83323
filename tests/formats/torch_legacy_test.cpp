#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "formats/little_endian.h"
#include "formats/support.h"
#include "formats/torch_file.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using namespace std::string_literals;

TorchFile read(std::string_view bytes) {
  return read_torch(test::source_of(bytes));
}

TEST(TorchLegacy, ReadsWhatTheZipOfTheSameTensorsHolds) {
  const std::string zip = test::golden("state_dict.pth");
  const std::string stream = test::golden("legacy.pth");
  const TorchFile expected = read(zip);
  const TorchFile file = read(stream);
  EXPECT_FALSE(file.has_checksums);
  ASSERT_EQ(file.tensors.size(), expected.tensors.size());
  for (size_t i = 0; i < file.tensors.size(); ++i) {
    const TensorInfo& a = expected.tensors[i];
    const TensorInfo& b = file.tensors[i];
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
  const TorchFile file = read(bytes);
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
    append_number<uint64_t>(bytes, count);
    return bytes + data;
  }
};

std::string view(const std::string& offset_and_size, char key = 'v') {
  return "K\x02(X\x01\0\0\0"s + key + offset_and_size + "t";
}

TEST(TorchLegacy, RefusesEveryHostileFileWithItsReason) {
  ASSERT_EQ(read(Stream{}.file()).tensors.size(), 1u);
  const std::pair<std::string, const char*> cases[] = {
      {Stream{.magic = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x18."s}.file(),
       "not the magic number"},
      {Stream{.version = "\x80\x02M\xea\x03."s}.file(), "version 1002"},
      {Stream{.little = "\x89"}.file(), "big-endian"},
      {Stream{.little = "N"}.file(), "big-endian"},
      {Stream{.id_tail = "K\x02)"}.file(), "something else than key, offset and size"},
      {Stream{.id_tail = view("K\x01K\x02")}.file(), "a view of 2 elements from 1 on"},
      {Stream{.id_tail = view("J\xff\xff\xff\xffK\x01")}.file(), "a view of 1 elements from -1 on"},
      {Stream{.id_tail = view("K\0K\x01"s)}.file(), "reaches out of its storage of 4 bytes"},
      {Stream{.id_tail = view("K\0K\x02"s, 'k')}.file(), "the view \"k\", which was another"},
      {Stream{.id_tail = "K\x02"}.file(), "a persistent id that is not"},
      {Stream{.id_tail = "K\x01N"}.file(), "reaches out of its storage of 4 bytes"},
      {Stream{.id_tail = "K\x03N"}.file(), "has 2 elements of 4 bytes, and the pickle says 12"},
      {Stream{.keys = ""}.file(), "0 storages follow"},
      {Stream{.keys = "X\x01\0\0\0j"s}.file(), "storage \"j\" at offset"},
      {Stream{.keys = "N"}.file(), "not used by any tensor"},
      {Stream{.count = 3}.file(), "has 3 elements of 4 bytes"},
      {Stream{.count = 1ull << 62}.file(), "has 4611686018427387904 elements"},
      {Stream{.data = "1234567"}.file(), "it is truncated"},
      {Stream{.data = "123456789"}.file(), "1 bytes follow the last storage"},
      {"not a file of torch", "not a file of torch.save"},
      {"", "not a file of torch.save"},
  };
  for (const auto& [bytes, expected] : cases) {
    const std::string message = test::refusal([&bytes = bytes] { read(bytes); });
    EXPECT_THAT(message, HasSubstr(expected));
    EXPECT_THAT(message, testing::StartsWith("x: "));
  }
}

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
