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
  append_number<uint64_t>(bytes, json.size());
  return bytes + json + std::string(data_bytes, 'd');
}

SafetensorsFile read(std::string_view bytes) {
  return read_safetensors(test::source_of(bytes));
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{}]}})", name, dtype,
                     shape, offsets);
}

TEST(Safetensors, ReadsWhatTheReferenceWrote) {
  const std::string bytes = test::golden("small.safetensors");
  const SafetensorsFile file = read(bytes);
  ASSERT_EQ(file.tensors.size(), 4u);
  EXPECT_EQ(file.metadata.at("format"), "pt");
  const TensorInfo& ids = file.tensors[0];
  EXPECT_EQ(ids.name, "ids");
  EXPECT_EQ(ids.dtype, DType::I64);
  EXPECT_THAT(ids.shape, ElementsAre(2));
  const TensorInfo& scalar = file.tensors[1];
  EXPECT_EQ(scalar.name, "scalar");
  EXPECT_THAT(scalar.shape, IsEmpty());
  const TensorInfo& weight = file.tensors[2];
  EXPECT_EQ(weight.name, "weight");
  EXPECT_THAT(weight.shape, ElementsAre(2, 3));
  float values[6];
  ASSERT_EQ(weight.size_bytes, sizeof values);
  std::memcpy(values, bytes.data() + weight.offset_bytes, sizeof values);
  EXPECT_THAT(values, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(file.tensors[3].dtype, DType::BF16);
}

TEST(Safetensors, AllowsWhatTheFormatAllows) {
  EXPECT_THAT(read(file_of("{}", 0)).tensors, IsEmpty());
  EXPECT_THAT(read(file_of("  {}  ", 0)).tensors, IsEmpty());
  const SafetensorsFile file =
      read(file_of("{" + entry("c", "F32", "", "0,4") + "," + entry("b", "F32", "0,7", "0,0") +
                       "," + entry("a", "U8", "0", "0,0") + "}",
                   4));
  EXPECT_EQ(file.tensors.size(), 3u);
  EXPECT_EQ(file.tensors[2].name, "c");
  EXPECT_EQ(read(file_of("{" + entry("p", "F4", "2,3", "0,3") + "}", 3)).tensors[0].size_bytes, 3u);
}

struct Hostile {
  const char* rule;
  std::string bytes;
  const char* error;
};

std::vector<Hostile> hostile_files() {
  const auto one = [](const char* dtype, const char* shape, const char* offsets, size_t size) {
    return file_of("{" + entry("t", dtype, shape, offsets) + "}", size);
  };
  const auto two = [](const char* first, const char* second, size_t size) {
    return file_of("{" + entry("a", "U8", "4", first) + "," + entry("b", "U8", "4", second) + "}",
                   size);
  };
  const std::string max(8, '\xff');
  std::string many = "{";
  for (int i = 0; i < 100'001; ++i) {
    many += fmt::format("\"{}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}},", i);
  }
  return {
      {"a length", "1234567", "7 bytes cannot hold the length"},
      {"header limit", file_of("{}", 0).replace(0, 8, max), "above the limit of 100000000"},
      {"header past the end", std::string("\x64\0\0\0\0\0\0\0{}", 10), "ends beyond the file's 10"},
      {"no header", std::string(8, '\0'), "not JSON in UTF-8"},
      {"UTF-8", file_of("{\"\xff\":1}", 0), "not JSON in UTF-8 at offset 11"},
      {"JSON", file_of("{\"a\":", 0), "not JSON in UTF-8"},
      {"one JSON value", file_of("{}{}", 0), "not JSON in UTF-8"},
      {"an object", file_of("[]", 0), "the header is a list"},
      {"an object", file_of("7", 0), "the header is the number 7"},
      {"an entry", file_of("{\"t\":[1]}", 0), "tensor \"t\": the header has a list"},
      {"an entry", file_of("{\"t\":null}", 0), "tensor \"t\": the header has null"},
      {"all fields", file_of(R"({"t":{"dtype":"U8","shape":[0]}})", 0), "no data_offsets"},
      {"known fields", file_of(R"({"t":{"strides":[1]}})", 0), "unknown field \"strides\""},
      {"nesting", file_of(R"({"t":{"shape":[[1]]}})", 0), "a list where it does not belong"},
      {"nesting", file_of(R"({"t":{"shape":{"a":1}}})", 0), "an object where a value belongs"},
      {"depth", file_of("{\"t\":" + std::string(100'000, '['), 0), "a list"},
      {"known dtype", one("F33", "1", "0,4", 4), "unknown dtype \"F33\""},
      {"known dtype", one("C128", "1", "0,16", 16), "unknown dtype \"C128\""},
      {"not negative", one("U8", "-4", "0,4", 4), "negative number -4"},
      {"not negative", one("U8", "4", "-4,0", 4), "negative number -4"},
      {"whole", one("U8", "4.0", "0,4", 4), "the number \"4.0\", which is not whole"},
      {"64 bits", one("U8", "4", "0,18446744073709551620", 4), "beyond 64 bits"},
      {"two offsets", one("U8", "4", "0,4,8", 4), "the number 8 where it does not belong"},
      {"two offsets", one("U8", "4", "4", 4), "1 data_offsets, not 2"},
      {"metadata", file_of(R"({"__metadata__":{"a":1}})", 0), "__metadata__: the header has the"},
      {"metadata", file_of(R"({"__metadata__":[]})", 0), "__metadata__: the header has a list"},
      {"metadata", file_of(R"({"__metadata__":{"a":{}}})", 0), "__metadata__: the header has an"},
      {"unique keys",
       file_of("{" + entry("a", "U8", "4", "0,4") + "," + entry("a", "U8", "4", "4,8") + "}", 8),
       "names \"a\" twice"},
      {"unique keys", file_of(R"({"__metadata__":{"a":"b","a":"c"}})", 0), "field \"a\" twice"},
      {"unique keys", file_of(R"({"t":{"dtype":"U8","dtype":"I8"}})", 0), "\"dtype\" twice"},
      {"number of tensors", file_of(many, 0), "more than 100000 tensors"},
      {"first at 0", one("U8", "4", "4,8", 8), "a hole"},
      {"no hole", two("0,4", "5,9", 9), "tensor \"b\": data_offsets [5, 9] begin at offset 5"},
      {"no overlap", two("0,4", "2,6", 6), "an overlap"},
      {"no overlap", two("0,4", "0,4", 4), "an overlap"},
      {"end after begin", one("U8", "4", "4,0", 4), "end before they begin"},
      {"overflow", one("U8", "2,18446744073709551614", "0,4", 4), "a dimension of 184467440737"},
      {"overflow", one("U8", "4294967296,4294967296", "0,4", 4), "no whole number of bytes"},
      {"overflow", one("F64", "4611686018427387904", "0,0", 0), "no whole number of bytes"},
      {"overflow behind 0", one("U8", "4611686018427387904,8,0", "0,0", 0), "no whole number"},
      {"whole bytes", one("F4", "3", "0,2", 2), "no whole number of bytes"},
      {"whole bytes", one("F6_E2M3", "2", "0,2", 2), "no whole number of bytes"},
      {"size of shape", one("F32", "2,3", "0,12", 12), "hold 12 bytes, and F32 [2, 3] has 24"},
      {"inside the file", one("U8", "8", "0,8", 7), "it is truncated"},
      {"inside the file", one("U8", "1152921504606846976", "0,1152921504606846976", 7),
       "it is truncated"},
      {"nothing behind", one("U8", "4", "0,4", 5), "bytes that no tensor owns"},
      {"nothing behind", file_of("{}", 1), "bytes that no tensor owns"},
  };
}

TEST(Safetensors, RefusesEveryHostileFileWithItsReason) {
  for (const Hostile& file : hostile_files()) {
    const std::string message = test::refusal([&] { read(file.bytes); });
    EXPECT_THAT(message, HasSubstr(file.error)) << file.rule;
    EXPECT_THAT(message, testing::StartsWith("x: ")) << file.rule;
  }
}

TEST(Safetensors, RefusesMoreDimensionsThanLibtorchHas) {
  std::string shape = "1";
  for (size_t i = 1; i < kMaxDims; ++i) {
    shape += ",1";
  }
  EXPECT_EQ(read(file_of("{" + entry("t", "U8", shape, "0,1") + "}", 1)).tensors.size(), 1u);
  EXPECT_THAT(
      test::refusal([&] { read(file_of("{" + entry("t", "U8", shape + ",1", "0,1") + "}", 1)); }),
      HasSubstr("at most 64 dimensions"));
}

TEST(Safetensors, RefusesEveryTruncation) {
  const std::string bytes = test::golden("small.safetensors");
  test::for_each_cut(bytes, [](std::string_view cut) {
    EXPECT_NE(test::refusal([&] { read(cut); }), "") << cut.size() << " bytes";
  });
}

bool same_but_names(const SafetensorsFile& a, const SafetensorsFile& b) {
  if (a.tensors.size() != b.tensors.size() || a.data_offset != b.data_offset) {
    return false;
  }
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    const TensorInfo& x = a.tensors[i];
    const TensorInfo& y = b.tensors[i];
    if (x.dtype != y.dtype || x.shape != y.shape || x.offset_bytes != y.offset_bytes) {
      return false;
    }
  }
  return true;
}

TEST(Safetensors, ABitFlippedInTheHeaderChangesAtMostAName) {
  const std::string bytes = test::golden("small.safetensors");
  const SafetensorsFile whole = read(bytes);
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
  void write(std::vector<TensorInfo> tensors) {
    SafetensorsWriter writer(path_, std::move(tensors), {{"step", "7"}, {"quote", "\"\n"}});
    for (const TensorInfo& tensor : writer.tensors()) {
      const std::string bytes(tensor.size_bytes, tensor.name.at(0));
      writer.append(std::as_bytes(std::span(bytes)));
    }
    writer.finish();
  }

  test::TempFolder folder_;
  std::string path_ = folder_.at("out.safetensors");
};

TEST_F(Writer, ItsFilesAreReadBackAndAligned) {
  write({{.name = "half", .dtype = DType::F16, .shape = {3}},
         {.name = "b", .dtype = DType::F32, .shape = {2, 2}},
         {.name = "a \"quoted\" 한글", .dtype = DType::F32, .shape = {}},
         {.name = "empty", .dtype = DType::I64, .shape = {0, 5}}});
  const FileSource source(path_);
  const SafetensorsFile file = read_safetensors(source);
  EXPECT_EQ(file.data_offset % 4096, 0u);
  ASSERT_EQ(file.tensors.size(), 4u);
  EXPECT_EQ(file.tensors[0].name, "empty");
  EXPECT_EQ(file.tensors[1].name, "a \"quoted\" 한글");
  EXPECT_EQ(source.read_text(file.tensors[2].offset_bytes, 16), std::string(16, 'b'));
  EXPECT_EQ(file.metadata.at("quote"), "\"\n");
  write({});
  EXPECT_THAT(read_safetensors(FileSource(path_)).tensors, IsEmpty());
}

TEST_F(Writer, RefusesWhatTheFormatCannotHold) {
  const auto refusal = [&](std::vector<TensorInfo> tensors) {
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
  EXPECT_THAT(refusal({{.name = "a", .dtype = DType::C128}}), HasSubstr("write a .pth file"));
  EXPECT_THAT(refusal({{.name = "a", .shape = {-1}}}), HasSubstr("cannot hold tensor \"a\""));
  EXPECT_THAT(refusal({{.name = "\xff"}}), HasSubstr("not UTF-8"));
  SafetensorsWriter writer(path_, {{.name = "a"}});
  EXPECT_THAT([&] { writer.finish(); }, ThrowsMessage<UsageError>(HasSubstr("end at offset 4100")));
}

}  // namespace
}  // namespace lockstep
