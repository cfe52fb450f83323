// Weights in a GPU's memory: the bits that they have on the CPU, in order with the work of the
// caller's stream, and the same files.

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/models/auto_model.h>

#include "base/unique_fd.h"
#include "device/memory.h"
#include "support/busy_gpu.h"
#include "support/fleet.h"
#include "support/refusal.h"
#include "support/temp_folder.h"
#include "weights/every_type.h"
#include "weights/weight_files.h"

namespace lockstep {
namespace {

using test::every_type_and_layout;
using test::expect_same_bits;
using test::refusal;
using test::TempFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_support::gpu;
using testing_support::keep_gpu_busy;
using testing_support::rank_argument;
using testing_support::run_ranks;

class WeightsCuda : public ::testing::Test {
 protected:
  void SetUp() override { LOCKSTEP_NEEDS_GPU(); }
};

std::vector<NamedTensor> moved(const std::vector<NamedTensor>& tensors, at::Device device) {
  std::vector<NamedTensor> result;
  for (const NamedTensor& named : tensors) {
    result.push_back({named.name, named.tensor.to(device)});
  }
  return result;
}

// Tensors of the same types, shapes and strides, with other bits.
std::vector<WeightTarget> targets_like(const std::vector<NamedTensor>& tensors, at::Device device) {
  std::vector<WeightTarget> targets;
  for (const NamedTensor& named : tensors) {
    targets.push_back({named.name, test::other_bits_like(named.tensor).to(device)});
  }
  return targets;
}

void load(const std::string& path, const std::vector<WeightTarget>& targets,
          LoadOptions options = {}) {
  Group alone = make_single_group();
  Weights weights = Weights::open(path, alone);
  load_weights(weights, targets, alone, options);
}

TEST_F(WeightsCuda, EveryTypeAndLayoutHasTheBitsOfTheFile) {
  const TempFolder folder;
  const auto tensors = every_type_and_layout();
  for (const char* name : {"model.safetensors", "model.pth"}) {
    save_weights(folder.at(name), tensors);
    const auto targets = targets_like(tensors, gpu());
    load(folder.at(name), targets);
    for (size_t i = 0; i < targets.size(); ++i) {
      EXPECT_TRUE(targets[i].tensor.is_cuda());
      EXPECT_EQ(targets[i].tensor.strides(), tensors[i].tensor.strides()) << targets[i].name;
      expect_same_bits(targets[i].tensor, tensors[i].tensor, targets[i].name);
    }
  }
}

TEST_F(WeightsCuda, ConvertsAsTheCpuDoes) {
  const TempFolder folder;
  const auto tensors = every_type_and_layout();
  save_weights(folder.at("model.safetensors"), tensors);
  for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kBFloat16, at::kInt}) {
    std::vector<WeightTarget> on_cpu;
    std::vector<WeightTarget> on_gpu;
    for (const NamedTensor& named : tensors) {
      if (test::is_defined(named.tensor.scalar_type(), type)) {
        on_cpu.push_back({named.name, at::full_like(named.tensor, 7, type)});
        on_gpu.push_back({named.name, on_cpu.back().tensor.to(gpu())});
      }
    }
    load(folder.at("model.safetensors"), on_cpu);
    load(folder.at("model.safetensors"), on_gpu);
    for (size_t i = 0; i < on_gpu.size(); ++i) {
      test::expect_same_values(on_gpu[i].tensor, on_cpu[i].tensor, on_gpu[i].name);
    }
  }
}

TEST_F(WeightsCuda, FilesDoNotDependOnTheDevice) {
  const TempFolder folder;
  const auto tensors = every_type_and_layout();
  for (const char* end : {".safetensors", ".pth"}) {
    const std::string cpu = folder.at(std::string("cpu") + end);
    const std::string cuda = folder.at(std::string("cuda") + end);
    save_weights(cpu, tensors);
    save_weights(cuda, moved(tensors, gpu()));
    EXPECT_TRUE(base::read_file(cpu) == base::read_file(cuda)) << end;
  }
}

// Nobody synchronises: the parameter is still being computed when it is saved or loaded, and used
// at once.
TEST_F(WeightsCuda, StreamsOrderLoadsAndSaves) {
  const TempFolder folder;
  const std::string path = folder.at("model.safetensors");
  const c10::impl::VirtualGuardImpl runtime(at::kCUDA);
  for (const bool has_own_stream : {false, true}) {
    const c10::StreamGuard guard(has_own_stream ? runtime.getStreamFromGlobalPool(gpu())
                                                : runtime.getStream(gpu()));
    const at::Tensor first = at::zeros({3'000'001}, at::TensorOptions(gpu()));
    const at::Tensor second = at::zeros({2049, 1027}, at::TensorOptions(gpu())).t();
    keep_gpu_busy();
    first.add_(5);
    second.add_(6);
    save_weights(path, std::vector<NamedTensor>{{"first", first}, {"second", second}});
    keep_gpu_busy();
    first.add_(1);  // what is loaded comes after this
    second.add_(1);
    load(path, {{"first", first}, {"second", second}});
    const at::Tensor first_result = first * 2;
    const at::Tensor second_result = second * 2;
    EXPECT_TRUE(first_result.cpu().equal(at::full({3'000'001}, 10.0f)));
    EXPECT_TRUE(second_result.cpu().equal(at::full({1027, 2049}, 12.0f)));
  }
}

// Many times the pinned buffers.
TEST_F(WeightsCuda, AGigabyteComesAndGoes) {
  const TempFolder folder;
  const std::string path = folder.at("model.safetensors");
  const at::Tensor large =
      at::randint(0, 32'000, {(1 << 29) + 7}, at::TensorOptions(gpu()).dtype(at::kShort));
  const auto bits = large.view(at::kBFloat16);
  save_weights(path, std::vector<NamedTensor>{{"large", bits}});
  const at::Tensor loaded = at::zeros_like(large);
  load(path, {{"large", loaded.view(at::kBFloat16)}});
  EXPECT_TRUE(loaded.equal(large));
}

TEST_F(WeightsCuda, AllRanksHoldTheWeightsInEveryMode) {
  const TempFolder folder;
  test::write_torch_file(folder.at("model.pth"), test::sample_weights());
  for (const int world : {1, 2, 3}) {
    run_ranks(world,
              [](Group& group) {
                ASSERT_EQ(cuda_problem(), "");
                Weights weights = Weights::open(rank_argument(), group);
                const test::Named wanted = test::sample_weights();
                for (const LoadMode mode :
                     {LoadMode::Each, LoadMode::Rank0, LoadMode::Cooperative, LoadMode::Auto}) {
                  auto targets = test::targets_for(wanted);
                  for (size_t i = 0; i < targets.size(); ++i) {  // on both devices
                    const bool is_on_cpu = i % 3 == 1;
                    targets[i].tensor = targets[i].tensor.to(is_on_cpu ? at::kCPU : gpu());
                  }
                  const LoadReport report = load_weights(weights, targets, group,
                                                         {.mode = mode, .window_bytes = 1 << 20});
                  EXPECT_TRUE(report.verified);
                  for (const WeightTarget& target : targets) {
                    expect_same_bits(target.tensor, wanted.at(target.name), target.name);
                  }
                }
              },
              {.argument = folder.at("model.pth")});
  }
}

TEST_F(WeightsCuda, APretrainedModelComesOntoTheGpuAndGoesBackIntoTheSameFile) {
  const TempFolder folder;
  const BertOptions small{.vocab_size = 3001,
                          .hidden_size = 96,
                          .num_layers = 2,
                          .num_heads = 4,
                          .ffn_size = 200,
                          .max_positions = 64};
  const auto made = AutoModel::from_config({.architecture = "BertModel", .options = small});
  save_pretrained(*made.module(), folder.at("first"));
  const AutoModelOptions options{
      .architecture = "BertForSequenceClassification", .num_labels = 3, .device = gpu()};
  const auto on_gpu = AutoModel::from_pretrained(folder.at("first"), options);
  AutoModelOptions for_cpu = options;
  for_cpu.device = at::kCPU;
  const auto on_cpu = AutoModel::from_pretrained(folder.at("first"), for_cpu);
  EXPECT_EQ(on_gpu.report().missing, on_cpu.report().missing);  // drawn from the seed
  const auto wanted = on_cpu.module()->named_parameters();
  for (const auto& item : on_gpu.module()->named_parameters()) {
    EXPECT_TRUE(item.value().is_cuda()) << item.key();
    EXPECT_TRUE(item.value().requires_grad());
    expect_same_bits(item.value(), wanted[item.key()], item.key());
  }
  save_pretrained(*on_gpu.module(), folder.at("cuda"));
  save_pretrained(*on_cpu.module(), folder.at("cpu"));
  EXPECT_TRUE(base::read_file(folder.at("cuda/model.safetensors")) ==
              base::read_file(folder.at("cpu/model.safetensors")));
}

TEST_F(WeightsCuda, WithoutMemoryTheErrorSaysHowMuchThereIs) {
  const int64_t bytes = int64_t{1} << 44;
  EXPECT_THAT(refusal([&] {
                device::with_memory(
                    {.user = "loading w", .device = gpu(), .bytes = static_cast<uint64_t>(bytes)},
                    [&] { return at::empty({bytes}, at::TensorOptions(gpu()).dtype(at::kByte)); });
              }),
              AllOf(HasSubstr("loading w: cuda:0 has no memory for 17592.19 GB: "),
                    HasSubstr(" GB are free"), HasSubstr("use fewer ranks per GPU")));
  EXPECT_TRUE(at::ones({3}, at::TensorOptions(gpu())).sum().item<float>() == 3.0f);
}

}  // namespace
}  // namespace lockstep
