// What lands in the targets, on a rank alone: every format, type and layout, and every refusal.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/digest.h"
#include "base/unique_fd.h"
#include "formats/torch/torch_writer.h"
#include "support/paths.h"
#include "support/refusal.h"
#include "support/temp_folder.h"
#include "weights/weight_files.h"

namespace lockstep {
namespace {

using test::expect_loaded;
using test::Named;
using test::patterned;
using test::refusal;
using test::sample_weights;
using test::targets_for;
using test::TempFolder;
using ::testing::HasSubstr;

LoadReport load(const std::string& location, const std::vector<WeightTarget>& targets,
                LoadOptions options = {}) {
  Group group = make_single_group();
  Weights weights = Weights::open(location, group);
  return load_weights(weights, targets, group, options);
}

TEST(Load, FillsTargetsFromATorchFile) {
  const TempFolder folder;
  const Named tensors = sample_weights();
  test::write_torch_file(folder.at("model.pth"), tensors);
  const auto targets = targets_for(tensors);
  const LoadReport report = load(folder.at("model.pth"), targets);
  expect_loaded(targets, tensors);
  EXPECT_TRUE(report.verified);
  EXPECT_EQ(report.bytes_exchanged, 0u);
}

TEST(Load, FillsTargetsFromSafetensors) {
  const TempFolder folder;
  const Named tensors = sample_weights();
  test::write_safetensors_file(folder.at("model.safetensors"), tensors);
  const auto targets = targets_for(tensors);
  const LoadReport report = load(folder.path(), targets);
  expect_loaded(targets, tensors);
  EXPECT_FALSE(report.verified) << "the format has no checksum";
}

TEST(Load, ConvertsToTheTypeOfTheTarget) {
  const TempFolder folder;
  const Named tensors = sample_weights();
  test::write_torch_file(folder.at("model.pth"), tensors);
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const auto targets = targets_for(tensors, type);
    EXPECT_TRUE(load(folder.at("model.pth"), targets).verified);
    expect_loaded(targets, tensors);
  }
}

TEST(Load, FillsTargetsOfAnyDenseLayout) {
  const TempFolder folder;
  const Named tensors{{"conv", patterned("conv", {33, 17, 9, 11})},
                      {"matrix", patterned("matrix", {1031, 517})}};
  test::write_torch_file(folder.at("model.pth"), tensors);
  const std::vector<WeightTarget> targets{
      {"conv", at::empty({33, 17, 9, 11}).to(at::MemoryFormat::ChannelsLast)},
      {"matrix", at::empty({517, 1031}).t()}};
  load(folder.at("model.pth"), targets);
  expect_loaded(targets, tensors);
}

std::string golden(const std::string& name) {
  return testing_support::in_tree("tests/formats/goldens/") + name;
}

// What tests/formats/goldens/make_goldens.py saved.
Named golden_weights() {
  const at::Tensor embedding = at::arange(12, at::kFloat).reshape({4, 3});
  return {{"wte.weight", embedding},
          {"ln.bias", at::tensor({0.5, -0.5}).to(at::kBFloat16)},
          {"steps", at::scalar_tensor(7, at::kLong)},
          {"mask", at::tensor({1, 0}).to(at::kBool)},
          {"transposed", at::arange(6, at::kHalf).reshape({2, 3}).t()},
          {"view", at::tensor({4.0, 5.0}).to(at::kFloat)},
          {"empty", at::empty({0, 3})},
          {"lm_head.weight", embedding},
          {"ids", at::tensor({65535, 1}).to(at::kUInt16)},
          {"fp8", at::tensor({1.0, -2.0}).to(at::kFloat8_e4m3fn)}};
}

TEST(Load, ResolvesViewsAndTiesOfTorchFilesOldAndNew) {
  for (const char* name : {"state_dict.pth", "legacy.pth"}) {
    const Named tensors = golden_weights();
    for (const at::ScalarType type : {at::ScalarType::Undefined, at::kFloat}) {
      std::vector<WeightTarget> targets;
      for (const auto& [key, tensor] : tensors) {
        const at::ScalarType own = tensor.scalar_type();
        targets.push_back(
            {key, at::zeros(tensor.sizes(), type == at::ScalarType::Undefined ? own : type)});
      }
      load(golden(name), targets);
      for (const WeightTarget& target : targets) {
        const at::Tensor expected = tensors.at(target.name).to(at::kFloat);
        EXPECT_TRUE(target.tensor.to(at::kFloat).equal(expected)) << name << " " << target.name;
      }
    }
  }
}

// Two tensors in one storage, far from each other.
void write_halves(const std::string& path, const at::Tensor& whole) {
  const auto count = static_cast<uint64_t>(whole.numel());
  formats::PickleValue root{.kind = formats::PickleValue::Kind::Dict};
  std::vector<formats::PickledTensor> tensors;
  for (const uint64_t half : {0, 1}) {
    root.items.push_back(
        formats::PickleValue::of(half == 0 ? std::string("first") : std::string("second")));
    root.items.push_back(formats::PickleValue::of_tensor(half));
    tensors.push_back({.storage = 0,
                       .dtype = formats::DType::F32,
                       .offset = half * count / 2,
                       .shape = {whole.numel() / 2},
                       .strides = {1}});
  }
  formats::TorchWriter writer(path, root, tensors,
                              {{.key = "0", .size_bytes = count * 4, .element_bytes = 4}});
  writer.begin();
  writer.append({static_cast<const std::byte*>(whole.const_data_ptr()), whole.nbytes()});
  writer.finish();
}

TEST(Load, APartOfAStorageCannotBeVerified) {
  const TempFolder folder;
  const at::Tensor whole = patterned("whole", {1 << 20});
  write_halves(folder.at("halves.pth"), whole);
  const Named tensors{{"first", whole.narrow(0, 0, 1 << 19)},
                      {"second", whole.narrow(0, 1 << 19, 1 << 19)}};
  auto targets = targets_for(tensors);
  EXPECT_TRUE(load(folder.at("halves.pth"), targets).verified);
  expect_loaded(targets, tensors);
  targets.erase(targets.begin());
  const LoadReport report = load(folder.at("halves.pth"), targets);
  EXPECT_FALSE(report.verified);
  EXPECT_LT(report.bytes_read, whole.nbytes() * 6 / 10);
  expect_loaded(targets, tensors);
}

TEST(Load, ASidecarIsHonouredOnRequest) {
  const TempFolder folder;
  const Named tensors{{"w", patterned("w", {50, 20})}};
  const std::string path = folder.at("model.safetensors");
  test::write_safetensors_file(path, tensors);
  const auto targets = targets_for(tensors);
  EXPECT_THROW(load(path, targets, {.sha256 = true}), IoError) << "there is none";
  const std::string text = base::read_file(path);
  folder.file("model.safetensors.sha256", base::sha256_hex(text) + "  model.safetensors\n");
  load(path, targets, {.sha256 = true});
  expect_loaded(targets, tensors);
  std::string changed = text;
  changed.back() ^= 1;
  folder.file("model.safetensors", changed);
  EXPECT_NO_THROW(load(path, targets)) << "safetensors has no checksum";
  EXPECT_THROW(load(path, targets, {.sha256 = true}), FormatError);
}

TEST(Load, ReadsOnlyWhatIsAskedFor) {
  const TempFolder folder;
  Named tensors;
  for (const char* name : {"a", "b", "c", "d"}) {
    tensors[name] = patterned(name, {1 << 18});  // 1 MiB each
  }
  test::write_torch_file(folder.at("model.pth"), tensors);
  const std::vector<WeightTarget> targets{{"c", at::zeros({1 << 18})}};
  const LoadReport report = load(folder.at("model.pth"), targets);
  expect_loaded(targets, tensors);
  EXPECT_TRUE(report.verified);
  EXPECT_GE(report.bytes_read, 1u << 20);
  EXPECT_LE(report.bytes_read, (1u << 20) + 2 * 4096);
}

TEST(Load, AParameterKeepsItsPlaceAndLearnsOfTheChange) {
  const TempFolder folder;
  const Named tensors{{"w", patterned("w", {50, 20})}};
  test::write_torch_file(folder.at("model.pth"), tensors);
  at::Tensor parameter = at::zeros({50, 20}).set_requires_grad(true);
  const void* before = parameter.const_data_ptr();
  const auto version = parameter._version();
  load(folder.at("model.pth"), {{"w", parameter}});
  EXPECT_TRUE(parameter.equal(tensors.at("w")));
  EXPECT_EQ(parameter.const_data_ptr(), before);
  EXPECT_GT(parameter._version(), version);
  EXPECT_TRUE(parameter.is_leaf());
}

TEST(Load, RefusesWhatDoesNotFit) {
  const TempFolder folder;
  test::write_torch_file(folder.at("model.pth"), sample_weights());
  const auto refused = [&](WeightTarget target) {
    return refusal([&] { load(folder.at("model.pth"), {target}); });
  };
  EXPECT_THAT(refused({"layer.0.wieght", at::zeros({64, 96})}),
              AllOf(HasSubstr("model.pth: no tensor \"layer.0.wieght\" among its 6"),
                    HasSubstr("is \"layer.0.weight\" meant?")));
  EXPECT_THAT(refused({"layer.0.weight", at::zeros({96, 64})}),
              HasSubstr("tensor \"layer.0.weight\" is F16 [64, 96] and the one to be filled has "
                        "the shape [96, 64]"));
  EXPECT_THAT(refused({"layer.0.weight", at::zeros({64, 1}).expand({64, 96})}),
              HasSubstr("only into a dense tensor of the CPU or a GPU"));
  EXPECT_THAT(refused({"layer.0.weight", at::Tensor()}),
              HasSubstr("only into a dense tensor of the CPU or a GPU"));
  EXPECT_THAT(refusal([&] { load(folder.at("model.pth"), {}, {.window_bytes = 1000}); }),
              HasSubstr("a window of 1000 bytes is below the least"));
}

TEST(Weights, TellWhatIsThere) {
  const TempFolder folder;
  test::write_safetensors_file(folder.at("model.safetensors"), sample_weights());
  const Weights weights = Weights::open(folder.path());
  EXPECT_EQ(weights.tensors().size(), 6u);
  EXPECT_EQ(weights.metadata().at("format"), "pt");
  EXPECT_FALSE(weights.has_checksums());
  const WeightInfo* info = weights.find("layer.0.weight");
  ASSERT_NE(info, nullptr);
  EXPECT_EQ(info->dtype, at::kHalf);
  EXPECT_EQ(info->shape, (std::vector<int64_t>{64, 96}));
  EXPECT_EQ(info->bytes, 64 * 96 * 2);
  EXPECT_EQ(weights.find("layer.2.weight"), nullptr);
}

TEST(Weights, AFolderOfShards) {
  const TempFolder folder;
  Named first = sample_weights();
  Named second;
  second.insert(first.extract("embed.weight"));
  test::write_safetensors_file(folder.at("one.safetensors"), first);
  test::write_safetensors_file(folder.at("two.safetensors"), second);
  std::string map;
  for (const auto& [name, tensor] : first) {
    map += "\"" + name + "\": \"one.safetensors\", ";
  }
  folder.file("model.safetensors.index.json",
              "{\"weight_map\": {" + map + "\"embed.weight\": \"two.safetensors\"}}");
  const auto targets = targets_for(sample_weights());
  load(folder.path(), targets);
  expect_loaded(targets, sample_weights());
}

TEST(Weights, RefuseAFolderWithoutAny) {
  const TempFolder folder;
  EXPECT_THAT(refusal([&] { Weights::open(folder.path()); }),
              AllOf(HasSubstr("none of model.safetensors"), HasSubstr("name the file itself")));
  EXPECT_THROW(Weights::open(folder.at("absent.pth")), IoError);
  EXPECT_THROW(Weights::open(folder.file("x.pth", "hello, this is no file of weights")),
               FormatError);
}

}  // namespace
}  // namespace lockstep
