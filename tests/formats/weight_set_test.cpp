#include "formats/weight_set.h"

#include <cmath>
#include <filesystem>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "formats/convert.h"
#include "formats/safetensors.h"
#include "formats/sidecar.h"
#include "formats/support.h"
#include "formats/torch/torch_file.h"
#include "formats/weight_diff.h"
#include "support/paths.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

std::unique_ptr<base::ByteSource> open_file(const std::string& location) {
  return std::make_unique<base::FileSource>(location);
}

formats::WeightSet open(const std::string& location) {
  if (!std::filesystem::is_directory(location)) {
    return formats::open_weight_set(location, open_file);
  }
  const auto has = [&](const char* name) { return std::filesystem::exists(location + "/" + name); };
  return formats::open_weight_set(formats::find_model_file(location, has), open_file);
}

std::string golden_path(const std::string& name) {
  return testing_support::in_tree("tests/formats/goldens/") + name;
}

const formats::WeightEntry& named(const formats::WeightSet& set, const std::string& name) {
  for (const formats::WeightEntry& entry : set.entries) {
    if (entry.tensor.name == name) {
      return entry;
    }
  }
  throw UsageError("no tensor {}", name);
}

// One tensor of floats.
void write(const std::string& path, const std::string& name, const std::vector<float>& values) {
  formats::SafetensorsWriter writer(
      path, {{.name = name, .shape = {static_cast<int64_t>(values.size())}}});
  writer.append(std::as_bytes(std::span(values)));
  writer.finish();
}

class WeightSetTest : public testing::Test {
 protected:
  test::TempFolder folder_;
};

TEST_F(WeightSetTest, AFolderIsItsWholeFileOrElseItsIndex) {
  write(folder_.at("one.safetensors"), "a", {1});
  write(folder_.at("model.safetensors"), "whole", {1, 2});
  EXPECT_EQ(open(folder_.path()).entries.at(0).tensor.name, "whole");
  write(folder_.at("two.safetensors"), "b", {2});
  folder_.file("model.safetensors.index.json",
               R"({"metadata":{"total_size":8},)"
               R"("weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  EXPECT_EQ(open(folder_.path()).entries.at(0).tensor.name, "whole");
  std::filesystem::remove(folder_.at("model.safetensors"));
  for (const std::string& location : {folder_.path(), folder_.at("model.safetensors.index.json")}) {
    const formats::WeightSet set = open(location);
    ASSERT_EQ(set.parts.size(), 2u);
    EXPECT_EQ(set.total_size, 8u);
    EXPECT_EQ(named(set, "b").part, 1u);
    EXPECT_EQ(set.parts[1].location, folder_.at("two.safetensors"));
  }
  folder_.file("model.safetensors.index.json", R"({"weight_map":{"a":"two.safetensors"}})");
  EXPECT_THAT([&] { open(folder_.path()); },
              ThrowsMessage<FormatError>(HasSubstr("the index puts tensor \"a\" here")));
}

TEST_F(WeightSetTest, AFolderWithoutOneIsRefusedWithTheNames) {
  EXPECT_THAT([&] { open(folder_.path()); },
              ThrowsMessage<UsageError>(
                  HasSubstr("none of model.safetensors, model.safetensors.index.json, pytorch")));
  EXPECT_THROW(open(folder_.at("missing.pth")), IoError);
}

TEST_F(WeightSetTest, AnArrayHasTheNameOfItsFile) {
  EXPECT_EQ(open(golden_path("array.npy")).entries.at(0).tensor.name, "array");
}

TEST_F(WeightSetTest, TiesAreFoundAndComeBackFromMetadata) {
  const formats::WeightSet torch = open(golden_path("state_dict.pth"));
  const formats::WeightEntry& head = named(torch, "lm_head.weight");
  ASSERT_TRUE(head.tied_to.has_value());
  EXPECT_EQ(torch.entries[*head.tied_to].tensor.name, "wte.weight");
  EXPECT_FALSE(named(torch, "view").tied_to.has_value());

  const formats::ConvertReport report =
      formats::convert_weights(torch, folder_.at("a.safetensors"));
  EXPECT_THAT(report.tied, ElementsAre("lm_head.weight"));
  EXPECT_EQ(report.num_views, 1u);
  const formats::SafetensorsFile file =
      formats::read_safetensors(base::FileSource(folder_.at("a.safetensors")));
  EXPECT_EQ(file.tensors.size(), torch.entries.size() - 1);
  EXPECT_EQ(file.metadata.at("lm_head.weight"), "wte.weight");
  EXPECT_EQ(file.metadata.at("format"), "pt");

  const formats::WeightSet back = open(folder_.at("a.safetensors"));
  EXPECT_TRUE(named(back, "lm_head.weight").tied_to.has_value());
  EXPECT_TRUE(formats::diff_weights(torch, back).is_equal());
  formats::convert_weights(back, folder_.at("b.pth"));
  const formats::TorchFile again = formats::read_torch(base::FileSource(folder_.at("b.pth")));
  EXPECT_EQ(again.tensors.size(), torch.entries.size());
  EXPECT_EQ(again.storages.size(), torch.entries.size() - 1);
  EXPECT_TRUE(formats::diff_weights(torch, open(folder_.at("b.pth"))).is_equal());
}

TEST_F(WeightSetTest, EveryFormatConvertsAndComesBackEqual) {
  for (const char* name : {"small.safetensors", "checkpoint.pth", "legacy.pth", "legacy_view.pth",
                           "tar.pth", "array.npy", "arrays.npz", "deflated.npz"}) {
    const formats::WeightSet set = open(golden_path(name));
    for (const char* output : {"out.safetensors", "out.bin"}) {
      formats::convert_weights(set, folder_.at(output));
      const formats::WeightSet converted = open(folder_.at(output));
      EXPECT_TRUE(formats::diff_weights(set, converted).is_equal()) << name << " " << output;
      for (const formats::WeightEntry& entry : converted.entries) {
        EXPECT_THAT(entry.tensor.strides, IsEmpty());
      }
    }
  }
}

TEST_F(WeightSetTest, TorchKeepsItsOtherValuesAndSafetensorsCountsThem) {
  const formats::WeightSet set = open(golden_path("checkpoint.pth"));
  formats::convert_weights(set, folder_.at("a.pth"));
  const formats::TorchFile file = formats::read_torch(base::FileSource(folder_.at("a.pth")));
  EXPECT_EQ(file.root.find("step")->integer, 3);
  EXPECT_EQ(file.root.find("loss")->real, 0.25);
  EXPECT_EQ(formats::convert_weights(set, folder_.at("a.pth")).num_values_left_out, 0u);
  EXPECT_GT(formats::convert_weights(set, folder_.at("a.safetensors")).num_values_left_out, 20u);
}

TEST_F(WeightSetTest, ConversionRefusesOtherNamesAndLeavesNothing) {
  const formats::WeightSet set = open(golden_path("small.safetensors"));
  EXPECT_THAT([&] { formats::convert_weights(set, folder_.at("a.onnx")); },
              ThrowsMessage<UsageError>(HasSubstr("must end in .safetensors, .pth, .pt or .bin")));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(WeightSetTest, AFileThatShrinksWhileItIsReadIsAnErrorAndLeavesNothing) {
  for (const char* name : {"small.safetensors", "state_dict.pth", "legacy.pth", "tar.pth"}) {
    const std::string path = folder_.file("shrinks", test::golden(name));
    const formats::WeightSet set = open(path);
    ASSERT_EQ(::truncate(path.c_str(), 300), 0);
    EXPECT_THROW(formats::convert_weights(set, folder_.at("out.safetensors")), IoError) << name;
    EXPECT_THROW(formats::diff_weights(set, open(golden_path(name))), IoError) << name;
    EXPECT_THROW(formats::verify_sidecar(*set.parts[0].source, ""), IoError) << name;
    EXPECT_FALSE(std::filesystem::exists(folder_.at("out.safetensors")));
  }
}

TEST_F(WeightSetTest, DiffFindsTheLargestDifference) {
  write(folder_.at("a"), "x", {1, 2, 3, NAN, 0.0f});
  write(folder_.at("b"), "x", {1, 2.5, 2.75, NAN, -0.0f});
  const formats::WeightDiff diff =
      formats::diff_weights(open(folder_.at("a")), open(folder_.at("b")));
  ASSERT_EQ(diff.different.size(), 1u);
  EXPECT_EQ(diff.different[0].num_different, 2u);
  EXPECT_EQ(diff.different[0].max_difference, 0.5);
  write(folder_.at("b"), "x", {1, 2, 3, 4, 0});
  const formats::WeightDiff nan =
      formats::diff_weights(open(folder_.at("a")), open(folder_.at("b")));
  EXPECT_TRUE(std::isnan(nan.different.at(0).max_difference));
  write(folder_.at("b"), "y", {1});
  const formats::WeightDiff names =
      formats::diff_weights(open(folder_.at("a")), open(folder_.at("b")));
  EXPECT_THAT(names.only_a, ElementsAre("x"));
  EXPECT_THAT(names.only_b, ElementsAre("y"));
  write(folder_.at("b"), "x", {1});
  EXPECT_FALSE(formats::diff_weights(open(folder_.at("a")), open(folder_.at("b")))
                   .different.at(0)
                   .is_compared);
}

TEST_F(WeightSetTest, DiffCountsTheIntegersThatDiffer) {
  const auto write_integers = [&](const char* file, const std::vector<int32_t>& values) {
    formats::SafetensorsWriter writer(
        folder_.at(file), {{.name = "x",
                            .dtype = formats::DType::I32,
                            .shape = {static_cast<int64_t>(values.size())}}});
    writer.append(std::as_bytes(std::span(values)));
    writer.finish();
  };
  write_integers("a", {1, 2, 3, 4, 5});
  write_integers("b", {1, 2, 7, 4, 500});
  const formats::WeightDiff diff =
      formats::diff_weights(open(folder_.at("a")), open(folder_.at("b")));
  ASSERT_EQ(diff.different.size(), 1u);
  EXPECT_EQ(diff.different[0].num_different, 2u);
}

TEST_F(WeightSetTest, DiffComparesFloatsOfTwoTypesByTheirValues) {
  write(folder_.at("a"), "x", {1, -2});
  formats::SafetensorsWriter writer(folder_.at("b"),
                                    {{.name = "x", .dtype = formats::DType::F16, .shape = {2}}});
  const uint16_t halves[] = {0x3c00, 0xc100};  // 1 and -2.5
  writer.append(std::as_bytes(std::span(halves)));
  writer.finish();
  const formats::WeightDiff diff =
      formats::diff_weights(open(folder_.at("a")), open(folder_.at("b")));
  ASSERT_EQ(diff.different.size(), 1u);
  EXPECT_TRUE(diff.different[0].is_compared);
  EXPECT_EQ(diff.different[0].max_difference, 0.5);
  EXPECT_EQ(diff.different[0].b, "F16 [2]");
}

}  // namespace
}  // namespace lockstep
