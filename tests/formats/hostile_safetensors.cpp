#include <fmt/format.h>

#include "formats/hostile.h"
#include "formats/little_endian.h"

namespace lockstep::test {

namespace {

using namespace std::string_literals;

std::string file_of(const std::string& json, size_t data_bytes) {
  std::string bytes;
  formats::append_number<uint64_t>(bytes, json.size());
  return bytes + json + std::string(data_bytes, 'd');
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{}]}})", name, dtype,
                     shape, offsets);
}

std::string one(const char* dtype, const char* shape, const char* offsets, size_t data_bytes) {
  return file_of("{" + entry("t", dtype, shape, offsets) + "}", data_bytes);
}

std::string two(const char* first, const char* second, size_t data_bytes) {
  return file_of("{" + entry("a", "U8", "4", first) + "," + entry("b", "U8", "4", second) + "}",
                 data_bytes);
}

std::string many_tensors() {
  std::string json = "{";
  for (int i = 0; i < 100'001; ++i) {
    json += fmt::format("\"{}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}},", i);
  }
  return file_of(json, 0);
}

std::string many_ones(size_t count) {
  std::string text = "1";
  for (size_t i = 1; i < count; ++i) {
    text += ",1";
  }
  return text;
}

}  // namespace

std::vector<HostileFile> hostile_safetensors() {
  return {
      {"short-length", "1234567"},
      {"header-limit", file_of("{}", 0).replace(0, 8, std::string(8, '\xff'))},
      {"header-past-end", std::string("\x64\0\0\0\0\0\0\0{}", 10)},
      {"no-header", std::string(8, '\0')},
      {"not-utf8", file_of("{\"\xff\":1}", 0)},
      {"not-json", file_of("{\"a\":", 0)},
      {"two-values", file_of("{}{}", 0)},
      {"list", file_of("[]", 0)},
      {"number", file_of("7", 0)},
      {"entry-list", file_of("{\"t\":[1]}", 0)},
      {"entry-null", file_of("{\"t\":null}", 0)},
      {"missing-field", file_of(R"({"t":{"dtype":"U8","shape":[0]}})", 0)},
      {"unknown-field", file_of(R"({"t":{"strides":[1]}})", 0)},
      {"shape-of-lists", file_of(R"({"t":{"shape":[[1]]}})", 0)},
      {"shape-object", file_of(R"({"t":{"shape":{"a":1}}})", 0)},
      {"deep", file_of("{\"t\":" + std::string(100'000, '['), 0)},
      {"unknown-dtype", one("F33", "1", "0,4", 4)},
      {"torch-only-dtype", one("C128", "1", "0,16", 16)},
      {"negative-size", one("U8", "-4", "0,4", 4)},
      {"negative-offset", one("U8", "4", "-4,0", 4)},
      {"fraction", one("U8", "4.0", "0,4", 4)},
      {"beyond-64-bits", one("U8", "4", "0,18446744073709551620", 4)},
      {"three-offsets", one("U8", "4", "0,4,8", 4)},
      {"one-offset", one("U8", "4", "4", 4)},
      {"metadata-number", file_of(R"({"__metadata__":{"a":1}})", 0)},
      {"metadata-list", file_of(R"({"__metadata__":[]})", 0)},
      {"metadata-object", file_of(R"({"__metadata__":{"a":{}}})", 0)},
      {"duplicate-tensor",
       file_of("{" + entry("a", "U8", "4", "0,4") + "," + entry("a", "U8", "4", "4,8") + "}", 8)},
      {"duplicate-metadata", file_of(R"({"__metadata__":{"a":"b","a":"c"}})", 0)},
      {"duplicate-field", file_of(R"({"t":{"dtype":"U8","dtype":"I8"}})", 0)},
      {"many-tensors", many_tensors()},
      {"many-dimensions", file_of("{" + entry("t", "U8", many_ones(65), "0,1") + "}", 1)},
      {"hole-in-front", one("U8", "4", "4,8", 8)},
      {"hole", two("0,4", "5,9", 9)},
      {"overlap", two("0,4", "2,6", 6)},
      {"same-bytes", two("0,4", "0,4", 4)},
      {"end-before-begin", one("U8", "4", "4,0", 4)},
      {"dimension-overflow", one("U8", "2,18446744073709551614", "0,4", 4)},
      {"shape-overflow", one("U8", "4294967296,4294967296", "0,4", 4)},
      {"bytes-overflow", one("F64", "4611686018427387904", "0,0", 0)},
      {"overflow-of-empty", one("U8", "4611686018427387904,8,0", "0,0", 0)},
      {"half-byte-f4", one("F4", "3", "0,2", 2)},
      {"half-byte-f6", one("F6_E2M3", "2", "0,2", 2)},
      {"wrong-size", one("F32", "2,3", "0,12", 12)},
      {"truncated", one("U8", "8", "0,8", 7)},
      {"offset-far-outside", one("U8", "1152921504606846976", "0,1152921504606846976", 7)},
      {"bytes-behind", one("U8", "4", "0,4", 5)},
      {"bytes-behind-nothing", file_of("{}", 1)},
  };
}

std::vector<HostileFile> hostile_index() {
  return {
      {"empty", ""},
      {"cut", R"({"weight_map":{"a":"one.bin"})"},
      {"list", "[]"},
      {"no-map", R"({"metadata":{}})"},
      {"map-list", R"({"weight_map":[]})"},
      {"duplicate", R"({"weight_map":{"a":"one.bin","a":"two.bin"}})"},
      {"parent", R"({"weight_map":{"a":"../one.bin"}})"},
      {"dots", R"({"weight_map":{"a":".."}})"},
      {"absolute", R"({"weight_map":{"a":"/etc/passwd"}})"},
      {"empty-name", R"({"weight_map":{"a":""}})"},
      {"zero-byte", R"({"weight_map":{"a":"b\u0000c"}})"},
      {"number", R"({"weight_map":{"a":7}})"},
      {"huge-number", R"({"metadata":{"total_size":5e555},"weight_map":{}})"},
      {"deep", R"({"weight_map":)" + std::string(1000, '[') + std::string(1000, ']') + "}"},
  };
}

}  // namespace lockstep::test
