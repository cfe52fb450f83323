#include "formats/hostile.h"
#include "formats/support.h"
#include "formats/torch/pickler.h"

namespace lockstep::test {

namespace {

using namespace std::string_literals;

using Kind = formats::PickleValue::Kind;

// A file with one tensor "w", whose parts can be spoilt one by one.
struct Spoilt {
  formats::PickledTensor tensor{.dtype = formats::DType::F32, .shape = {2}, .strides = {1}};
  uint64_t claimed_bytes = 8;
  std::string record = "12345678";
  std::string after_pickle;
  std::vector<std::pair<std::string, std::string>> more{{"r/byteorder", "little"},
                                                        {"r/version", "3\n"}};

  std::string file() const {
    formats::PickleValue root{
        .kind = Kind::Dict,
        .items = {formats::PickleValue::of("w"), formats::PickleValue::of_tensor(0)}};
    const std::string text = formats::pickle(
        root, std::vector{tensor},
        std::vector<formats::PickledStorage>{{.key = "0", .size_bytes = claimed_bytes}});
    std::vector<std::pair<std::string, std::string>> records{{"r/data.pkl", text + after_pickle},
                                                             {"r/data/0", record}};
    records.insert(records.end(), more.begin(), more.end());
    return zip_of(records);
  }
};

std::string spoilt_tensor(uint64_t offset, std::vector<int64_t> shape,
                          std::vector<int64_t> strides) {
  return Spoilt{
      .tensor = {.offset = offset, .shape = std::move(shape), .strides = std::move(strides)}}
      .file();
}

std::string more(std::vector<std::pair<std::string, std::string>> records) {
  return Spoilt{.more = std::move(records)}.file();
}

std::string two_of_one_name() {
  formats::PickleValue inner{
      .kind = Kind::Dict,
      .items = {formats::PickleValue::of("b"), formats::PickleValue::of_tensor(0)}};
  formats::PickleValue root{
      .kind = Kind::Dict,
      .items = {formats::PickleValue::of("a.b"), formats::PickleValue::of_tensor(0),
                formats::PickleValue::of("a"), inner}};
  const std::string text =
      formats::pickle(root, std::vector<formats::PickledTensor>{{.shape = {}, .strides = {}}},
                      std::vector<formats::PickledStorage>{{.key = "0", .size_bytes = 4}});
  return zip_of({{"r/data.pkl", text}, {"r/data/0", "1234"}, {"r/version", "3\n"}});
}

}  // namespace

std::vector<HostileFile> hostile_torch() {
  const std::string good = Spoilt{}.file();
  return {
      {"flipped-weight", flipped(good, "12345678")},
      {"flipped-pickle", flipped(good, "storage")},
      {"storage-too-large", Spoilt{.claimed_bytes = 400'000}.file()},
      {"record-too-short", Spoilt{.record = "1234567"}.file()},
      {"record-too-long", Spoilt{.record = "123456789"}.file()},
      {"shape-outside", spoilt_tensor(0, {3}, {1})},
      {"stride-outside", spoilt_tensor(0, {2}, {2})},
      {"offset-outside", spoilt_tensor(1, {2}, {1})},
      {"empty-outside", spoilt_tensor(3, {0}, {1})},
      {"negative-offset", spoilt_tensor(static_cast<uint64_t>(-4), {1}, {1})},
      {"negative-stride", spoilt_tensor(0, {2}, {-1})},
      {"negative-size", spoilt_tensor(0, {-2}, {1})},
      {"missing-stride", spoilt_tensor(0, {2, 1}, {1})},
      {"many-dimensions",
       spoilt_tensor(0, std::vector<int64_t>(65, 1), std::vector<int64_t>(65, 1))},
      {"shape-overflow", spoilt_tensor(0, {INT64_MAX, 4}, {0, 0})},
      {"stride-overflow", spoilt_tensor(0, {INT64_MAX}, {INT64_MAX})},
      {"unfolding", spoilt_tensor(0, {1'000'000'000'000'000}, {0})},
      {"deflated", deflated(good)},
      {"big-endian", more({{"r/byteorder", "big"}, {"r/version", "3\n"}})},
      {"duplicate", more({{"r/version", "3\n"}, {"r/data/0", "87654321"}})},
      {"two-roots", more({{"r/version", "3\n"}, {"s/data/1", ""}})},
      {"no-version", more({})},
      {"torchscript", more({{"r/version", "3\n"}, {"r/constants.pkl", ""}})},
      {"no-records", zip_of({})},
      {"no-pickle", zip_of({{"r/version", "3\n"}})},
      {"long-version", zip_of({{"r/data.pkl", "\x80\x02}."}, {"r/version", std::string(65, '3')}})},
      {"bytes-behind", Spoilt{.after_pickle = "x"}.file()},
      {"two-of-one-name", two_of_one_name()},
  };
}

}  // namespace lockstep::test
