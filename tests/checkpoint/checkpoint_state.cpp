#include "checkpoint/checkpoint_state.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <mutex>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <lockstep/base/log.h>

#include "checkpoint_files/owner.h"

namespace lockstep::test {

namespace {

constexpr at::ScalarType kTypes[] = {
    at::kBool,           at::kByte,          at::kChar,           at::kShort,
    at::kUInt16,         at::kInt,           at::kUInt32,         at::kLong,
    at::kUInt64,         at::kHalf,          at::kBFloat16,       at::kFloat,
    at::kDouble,         at::kComplexHalf,   at::kComplexFloat,   at::kComplexDouble,
    at::kFloat8_e5m2,    at::kFloat8_e4m3fn, at::kFloat8_e8m0fnu, at::kFloat8_e4m3fnuz,
    at::kFloat8_e5m2fnuz};

at::Tensor with_bits(at::IntArrayRef shape, at::ScalarType type, uint64_t seed) {
  at::Tensor tensor = at::empty(shape, type);
  auto* bytes = static_cast<uint8_t*>(tensor.mutable_data_ptr());
  uint64_t word = seed * 0x9e3779b97f4a7c15u + 1;
  for (size_t i = 0; i < tensor.nbytes(); i += sizeof(word)) {
    word = word * 6364136223846793005u + 1442695040888963407u;
    const uint64_t bits = (word ^ word >> 29) & (type == at::kBool ? 0x0101010101010101u : ~0ull);
    std::memcpy(bytes + i, &bits, std::min(sizeof(bits), tensor.nbytes() - i));
  }
  return tensor;
}

std::mutex warnings_mutex;
std::string warnings;

}  // namespace

std::vector<NamedTensor> sample_state(uint64_t seed) {
  std::vector<NamedTensor> state;
  for (const at::ScalarType type : kTypes) {
    state.push_back({std::string("small.") + toString(type), with_bits({17}, type, ++seed)});
  }
  state.push_back({"large.first", with_bits({301, 1003}, at::kFloat, ++seed)});
  state.push_back({"large.turned", with_bits({300, 200}, at::kDouble, ++seed).t()});
  state.push_back({"scalar", with_bits({}, at::kLong, ++seed)});
  state.push_back({"empty", at::empty({0, 3}, at::kHalf)});
  state.push_back({"large.second", with_bits({(5 << 20) + 3}, at::kBFloat16, ++seed)});
  state.push_back({"large.odd", with_bits({70'001}, at::kByte, ++seed).narrow(0, 1, 70'000)});
  state.push_back({"last name, \"with\" 이름", with_bits({3, 5}, at::kFloat, ++seed)});
  return state;
}

std::vector<WeightTarget> targets_like(const std::vector<NamedTensor>& state) {
  std::vector<WeightTarget> targets;
  for (const NamedTensor& named : state) {
    at::Tensor tensor = named.tensor.clone();
    std::memset(tensor.mutable_data_ptr(), named.tensor.scalar_type() == at::kBool ? 0 : 0x5a,
                tensor.nbytes());
    targets.push_back({named.name, tensor});
  }
  std::reverse(targets.begin(), targets.end());
  return targets;
}

void expect_same_bits(const std::vector<WeightTarget>& found,
                      const std::vector<NamedTensor>& wanted) {
  for (const WeightTarget& target : found) {
    const auto other = std::find_if(wanted.begin(), wanted.end(), [&](const NamedTensor& named) {
      return named.name == target.name;
    });
    ASSERT_NE(other, wanted.end());
    const at::Tensor a = target.tensor.contiguous();
    const at::Tensor b = other->tensor.contiguous();
    ASSERT_EQ(a.nbytes(), b.nbytes());
    EXPECT_EQ(std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()), 0) << target.name;
  }
}

SaveResult save(CheckpointWriter& writer, int64_t step, std::optional<double> score) {
  writer.begin({.step = step, .values = {{"counter", std::to_string(step)}}, .score = score},
               sample_state(static_cast<uint64_t>(step)));
  writer.wait();
  const auto results = writer.take_results();
  EXPECT_EQ(results.size(), 1u);
  return results.empty() ? SaveResult() : results[0];
}

int64_t load_newest(const std::string& location, Group& group) {
  const auto checkpoint = find_checkpoint(location, group);
  if (!checkpoint) {
    return -1;
  }
  const int64_t step = checkpoint->info().step;
  EXPECT_EQ(checkpoint->info().values.at("counter"), std::to_string(step));
  const auto state = sample_state(static_cast<uint64_t>(step));
  const auto targets = targets_like(state);
  checkpoint->load(targets, group);
  expect_same_bits(targets, state);
  return step;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename() != checkpoint_files::kOwnerFile) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

Warnings::Warnings() {
  warnings.clear();
  log::set_sink([](log::Level level, std::string_view line) {
    const std::lock_guard lock(warnings_mutex);
    warnings += level == log::Level::Warn ? std::string(line) + "\n" : "";
  });
}

Warnings::~Warnings() {
  log::set_sink({});
}

std::string Warnings::text() const {
  const std::lock_guard lock(warnings_mutex);
  return warnings;
}

}  // namespace lockstep::test
