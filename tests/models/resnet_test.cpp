#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <lockstep/models/resnet.h>

#include "models/golden.h"

namespace lockstep::test {
namespace {

ResNet make_resnet(const std::string& name) {
  ResNetOptions options = std::get<ResNetOptions>(builtin_config(name).options);
  options.initialise = false;
  return ResNet(options);
}

// As make_goldens.py does.
void fill_all(torch::nn::Module& model) {
  const at::NoGradGuard no_grad;
  for (const auto& items : {model.named_parameters(), model.named_buffers()}) {
    for (const auto& item : items) {
      const at::Tensor& tensor = item.value();
      if (!tensor.is_floating_point()) {
        continue;
      }
      at::Tensor values = fill(item.key(), tensor.sizes());
      if (tensor.dim() > 1) {
        const auto num_inputs = static_cast<double>(tensor[0].numel());
        values *= std::sqrt(6 / num_inputs);
      } else {
        const bool is_scale = item.key().ends_with("weight") || item.key().ends_with("running_var");
        values = (is_scale ? 1.0 : 0.0) + 0.3 * values;
      }
      tensor.copy_(values);
    }
  }
}

class ResNetGolden : public testing::TestWithParam<const char*> {};

TEST_P(ResNetGolden, ComputesWhatTorchvisionComputes) {
  const Golden golden = read_golden(GetParam());
  ResNet model = make_resnet(GetParam());
  model->to(at::kDouble);
  fill_all(*model);
  const at::Tensor pictures = fill("pictures", {2, 3, 40, 40});
  Tensors results;
  results["output.train"] = model(pictures);
  results["loss"] =
      at::cross_entropy_loss(results["output.train"], at::tensor({3, 700}, at::kLong));
  results["loss"].backward();
  for (const auto& item : model->named_parameters()) {
    results["grad." + item.key()] = summary(item.key(), item.value().grad());
  }
  const at::NoGradGuard no_grad;
  model->eval();
  results["output.eval"] = model(pictures);
  model->to(at::kFloat);
  results["output.eval_float32"] = model(pictures.to(at::kFloat));
  expect_close(results, golden, 1e-5);
  // Double precision shows nothing but a difference of the models.
  EXPECT_LE(largest_difference(results["output.train"], golden.at("output.train")), 1e-10);
  EXPECT_LE(largest_difference(results["output.eval"], golden.at("output.eval")), 1e-10);
}

INSTANTIATE_TEST_SUITE_P(Depths, ResNetGolden, testing::Values("resnet18", "resnet50"));

TEST(ResNet, CountsItsBatches) {
  ResNet model(ResNetOptions{.blocks = {1, 1, 1, 1}, .width = 4, .num_classes = 5});
  EXPECT_EQ(model(at::rand({2, 3, 33, 47})).sizes(), (at::IntArrayRef{2, 5}));
  EXPECT_EQ(model->named_buffers()["layer4.0.downsample.1.num_batches_tracked"].item<int64_t>(), 1);
}

}  // namespace
}  // namespace lockstep::test
