#include "formats/safetensors.h"

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

std::string file_of(const std::string& json, size_t data_bytes) {
  std::string bytes;
  formats::append_number<uint64_t>(bytes, json.size());
  return bytes + json + std::string(data_bytes, 'd');
}

formats::SafetensorsFile read(std::string_view bytes) {
  return formats::read_safetensors(test::source_of(bytes));
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{}]}})", name, dtype,
                     shape, offsets);
}

TEST(Safetensors, ReadsWhatTheReferenceWrote) {
  const std::string bytes = test::golden("small.safetensors");
  const formats::SafetensorsFile file = read(bytes);
  ASSERT_EQ(file.tensors.size(), 4u);
  EXPECT_EQ(file.metadata.at("format"), "pt");
  const formats::TensorInfo& ids = file.tensors[0];
  EXPECT_EQ(ids.name, "ids");
  EXPECT_EQ(ids.dtype, formats::DType::I64);
  EXPECT_THAT(ids.shape, ElementsAre(2));
  const formats::TensorInfo& scalar = file.tensors[1];
  EXPECT_EQ(scalar.name, "scalar");
  EXPECT_THAT(scalar.shape, IsEmpty());
  const formats::TensorInfo& weight = file.tensors[2];
  EXPECT_EQ(weight.name, "weight");
  EXPECT_THAT(weight.shape, ElementsAre(2, 3));
  float values[6];
  ASSERT_EQ(weight.size_bytes, sizeof values);
  std::memcpy(values, bytes.data() + weight.offset_bytes, sizeof values);
  EXPECT_THAT(values, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(file.tensors[3].dtype, formats::DType::BF16);
}

TEST(Safetensors, AllowsWhatTheFormatAllows) {
  EXPECT_THAT(read(file_of("{}", 0)).tensors, IsEmpty());
  EXPECT_THAT(read(file_of("  {}  ", 0)).tensors, IsEmpty());
  const formats::SafetensorsFile file =
      read(file_of("{" + entry("c", "F32", "", "0,4") + "," + entry("b", "F32", "0,7", "0,0") +
                       "," + entry("a", "U8", "0", "0,0") + "}",
                   4));
  EXPECT_EQ(file.tensors.size(), 3u);
  EXPECT_EQ(file.tensors[2].name, "c");
  EXPECT_EQ(read(file_of("{" + entry("p", "F4", "2,3", "0,3") + "}", 3)).tensors[0].size_bytes, 3u);
}

TEST(Safetensors, RefusesEveryTruncation) {
  const std::string bytes = test::golden("small.safetensors");
  test::for_each_cut(bytes, [](std::string_view cut) {
    EXPECT_NE(test::refusal([&] { read(cut); }), "") << cut.size() << " bytes";
  });
}

bool same_but_names(const formats::SafetensorsFile& a, const formats::SafetensorsFile& b) {
  if (a.tensors.size() != b.tensors.size() || a.data_offset != b.data_offset) {
    return false;
  }
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    const formats::TensorInfo& x = a.tensors[i];
    const formats::TensorInfo& y = b.tensors[i];
    if (x.dtype != y.dtype || x.shape != y.shape || x.offset_bytes != y.offset_bytes) {
      return false;
    }
  }
  return true;
}

TEST(Safetensors, ABitFlippedInTheHeaderChangesAtMostAName) {
  const std::string bytes = test::golden("small.safetensors");
  const formats::SafetensorsFile whole = read(bytes);
  int num_refused = 0;
  test::for_each_flip(bytes, 0, whole.data_offset, [&](std::string_view flipped, size_t byte) {
    try {
      EXPECT_TRUE(same_but_names(read(flipped), whole)) << "byte " << byte;
    } catch (const FormatError&) {
      ++num_refused;
    }
  });
  EXPECT_GT(num_refused, static_cast<int>(whole.data_offset) * 8 / 2);
}

class Writer : public testing::Test {
 protected:
  void write(std::vector<formats::TensorInfo> tensors) {
    formats::SafetensorsWriter writer(path_, std::move(tensors),
                                      {{"step", "7"}, {"quote", "\"\n"}});
    for (const formats::TensorInfo& tensor : writer.tensors()) {
      const std::string bytes(tensor.size_bytes, tensor.name.at(0));
      writer.append(std::as_bytes(std::span(bytes)));
    }
    writer.finish();
  }

  test::TempFolder folder_;
  std::string path_ = folder_.at("out.safetensors");
};

TEST_F(Writer, ItsFilesAreReadBackAndAligned) {
  write({{.name = "half", .dtype = formats::DType::F16, .shape = {3}},
         {.name = "b", .dtype = formats::DType::F32, .shape = {2, 2}},
         {.name = "a \"quoted\" 한글", .dtype = formats::DType::F32, .shape = {}},
         {.name = "empty", .dtype = formats::DType::I64, .shape = {0, 5}}});
  const base::FileSource source(path_);
  const formats::SafetensorsFile file = formats::read_safetensors(source);
  EXPECT_EQ(file.data_offset % 4096, 0u);
  ASSERT_EQ(file.tensors.size(), 4u);
  EXPECT_EQ(file.tensors[0].name, "empty");
  EXPECT_EQ(file.tensors[1].name, "a \"quoted\" 한글");
  EXPECT_EQ(source.read_text(file.tensors[2].offset_bytes, 16), std::string(16, 'b'));
  EXPECT_EQ(file.metadata.at("quote"), "\"\n");
  write({});
  EXPECT_THAT(formats::read_safetensors(base::FileSource(path_)).tensors, IsEmpty());
}

TEST_F(Writer, RefusesWhatTheFormatCannotHold) {
  const auto refusal = [&](std::vector<formats::TensorInfo> tensors) {
    try {
      write(std::move(tensors));
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(refusal({{.name = ""}}), HasSubstr("empty, taken or reserved"));
  EXPECT_THAT(refusal({{.name = "__metadata__"}}), HasSubstr("empty, taken or reserved"));
  EXPECT_THAT(refusal({{.name = "a"}, {.name = "a"}}), HasSubstr("the name \"a\""));
  EXPECT_THAT(refusal({{.name = "a", .dtype = formats::DType::C128}}),
              HasSubstr("write a .pth file"));
  EXPECT_THAT(refusal({{.name = "a", .shape = {-1}}}), HasSubstr("cannot hold tensor \"a\""));
  EXPECT_THAT(refusal({{.name = "\xff"}}), HasSubstr("not UTF-8"));
  formats::SafetensorsWriter writer(path_, {{.name = "a"}});
  EXPECT_THAT([&] { writer.finish(); }, ThrowsMessage<UsageError>(HasSubstr("end at offset 4100")));
}

}  // namespace
}  // namespace lockstep
