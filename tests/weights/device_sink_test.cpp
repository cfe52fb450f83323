// The way of weights into a device's memory and out of it, on CPU tensors: through pinned buffers
// and copies that come late, so that who does not wait for one is found out.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/dice.h"
#include "base/unique_fd.h"
#include "device/memory.h"
#include "support/late_copies.h"
#include "support/temp_folder.h"
#include "weights/every_type.h"
#include "weights/plan.h"
#include "weights/sink.h"
#include "weights/weight_files.h"

namespace lockstep {
namespace {

using test::every_type_and_layout;
using test::expect_same_bits;
using test::TempFolder;

// Reads the file in pieces that end anywhere, which are overwritten as soon as the sink has had
// them. Calls `check` while the sink still lives: with it the last copies would end in any case.
template <typename Check>
void load_by_sink(const std::string& path, const std::vector<WeightTarget>& targets,
                  uint64_t slot_bytes, const Check& check) {
  const Weights weights = Weights::open(path);
  const weights::LoadPlan plan = weights::make_plan(weights.catalog(), targets);
  const auto sink = weights::make_sink(
      plan, targets, {.timeout = std::chrono::seconds(60), .slot_bytes = slot_bytes});
  weights::Scatter scatter(plan, *sink);
  base::Dice dice(/*seed=*/3, slot_bytes);
  std::vector<std::unique_ptr<base::ByteSource>> sources;
  for (const weights::CatalogFile& file : weights.catalog().files) {
    sources.push_back(weights::open_file_of(file, weights::ReadsBy::OneRank));
  }
  std::vector<std::byte> chunk(300'000);
  for (uint64_t position = 0; position < plan.stream_bytes;) {
    const uint64_t bytes =
        std::min<uint64_t>(1 + dice.below(chunk.size()), plan.stream_bytes - position);
    for (const weights::ReadPart& part : weights::parts_of(plan, position, bytes)) {
      sources[part.file]->read_at(part.offset, std::span(chunk).subspan(part.at, part.bytes));
    }
    scatter.put(position, std::span(chunk).first(bytes));
    std::fill(chunk.begin(), chunk.end(), std::byte{0xee});
    position += bytes;
  }
  sink->finish();
  check();
}

std::vector<WeightTarget> targets_like(const std::vector<NamedTensor>& tensors) {
  std::vector<WeightTarget> targets;
  for (const NamedTensor& named : tensors) {
    targets.push_back({named.name, test::other_bits_like(named.tensor)});
  }
  return targets;
}

void expect_equal(const std::vector<WeightTarget>& found, const std::vector<NamedTensor>& wanted) {
  for (size_t i = 0; i < found.size(); ++i) {
    expect_same_bits(found[i].tensor, wanted[i].tensor, found[i].name);
  }
}

// The buffers are smaller than most tensors, or hold many.
constexpr uint64_t kSlots[] = {20'000, 4 << 20};

TEST(DeviceSink, EveryTypeAndLayoutArrives) {
  const TempFolder folder;
  const auto tensors = every_type_and_layout();
  save_weights(folder.at("model.safetensors"), tensors);
  const device::CopiesOnCpu copies(testing_support::make_late_copies);
  for (const uint64_t slot_bytes : kSlots) {
    const auto targets = targets_like(tensors);
    load_by_sink(folder.at("model.safetensors"), targets, slot_bytes,
                 [&] { expect_equal(targets, tensors); });
  }
}

// Infinities, NaN and what is rounded included.
TEST(DeviceSink, ConvertsAsTheCpuDoes) {
  const TempFolder folder;
  save_weights(folder.at("model.safetensors"), every_type_and_layout());
  for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kBFloat16, at::kInt}) {
    const auto make_targets = [&] {
      std::vector<WeightTarget> targets;
      for (const NamedTensor& named : every_type_and_layout()) {
        if (test::is_defined(named.tensor.scalar_type(), type)) {
          targets.push_back({named.name, at::full_like(named.tensor, 7, type)});
        }
      }
      return targets;
    };
    const auto wanted = make_targets();
    load_by_sink(folder.at("model.safetensors"), wanted, 4 << 20, [] {});
    const device::CopiesOnCpu copies(testing_support::make_late_copies);
    for (const uint64_t slot_bytes : kSlots) {
      const auto targets = make_targets();
      load_by_sink(folder.at("model.safetensors"), targets, slot_bytes, [&] {
        for (size_t i = 0; i < targets.size(); ++i) {
          test::expect_same_values(targets[i].tensor, wanted[i].tensor, targets[i].name);
        }
      });
    }
  }
}

TEST(DeviceSink, AParameterLearnsOfTheChange) {
  const TempFolder folder;
  const auto value = test::patterned("w", {50, 20});
  save_weights(folder.at("model.safetensors"), std::vector<NamedTensor>{{"w", value}});
  const device::CopiesOnCpu copies(testing_support::make_late_copies);
  for (const bool is_turned : {false, true}) {
    at::Tensor memory = at::zeros({50, 20});
    at::Tensor parameter = is_turned ? at::zeros({20, 50}).t() : memory;
    parameter = parameter.detach().set_requires_grad(true);
    const auto version = parameter._version();
    load_by_sink(folder.at("model.safetensors"), {{"w", parameter}}, 1000, [&] {
      EXPECT_TRUE(parameter.equal(value));
      EXPECT_GT(parameter._version(), version);
      EXPECT_TRUE(parameter.is_leaf());
    });
  }
}

TEST(SaveOfADevice, WritesTheBytesOfTheCpu) {
  const TempFolder folder;
  const auto tensors = every_type_and_layout();
  for (const char* end : {".safetensors", ".pth"}) {
    save_weights(folder.at(std::string("cpu") + end), tensors);
    {
      const device::CopiesOnCpu copies(testing_support::make_late_copies);
      save_weights(folder.at(std::string("device") + end), tensors);
    }
    EXPECT_TRUE(base::read_file(folder.at(std::string("cpu") + end)) ==
                base::read_file(folder.at(std::string("device") + end)))
        << end;
  }
}

}  // namespace
}  // namespace lockstep
