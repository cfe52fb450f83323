// The kernels of a training step on a GPU against their twins on the CPU. Sizes are small, so that
// compute-sanitizer ends soon, and odd: vectors that are not whole, rows that are not aligned, no
// rows at all.

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "device/plugin.h"
#include "kernel_runs.h"
#include "support/gpu.h"

namespace lockstep::device {
namespace {

using testing_support::gpu;
using testing_support::KernelRuns;

const KernelRuns kTwins(cpu_kernels(), at::kCPU);

class Kernels : public ::testing::Test {
 protected:
  void SetUp() override {
    LOCKSTEP_NEEDS_GPU();
    ASSERT_NE(cuda_kernels(), nullptr) << plugin_state();
    at::manual_seed(11);
  }
  KernelRuns runs() const { return {*cuda_kernels(), gpu()}; }
};

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};

// What float32 sums and, if it is stored as bfloat16, a rounding the other way make of a value.
double tolerance(at::ScalarType type) {
  return type == at::kFloat ? 2e-5 : 1.0 / 128;
}

// The largest difference, relative to 1 and more; infinite where one is NaN and the other is not.
void expect_near(const at::Tensor& have, const at::Tensor& want, double limit, const char* what) {
  ASSERT_EQ(have.defined(), want.defined()) << what;
  if (!have.defined() || have.numel() == 0) {
    return;
  }
  ASSERT_EQ(have.sizes(), want.sizes()) << what;
  const at::Tensor a = have.to(at::kDouble);
  const at::Tensor b = want.to(at::kDouble);
  ASSERT_TRUE(a.isnan().equal(b.isnan())) << what << ": NaN in one of them";
  const at::Tensor away = ((a - b).abs() / b.abs().clamp_min(1)).nan_to_num(0);
  EXPECT_LE(away.max().item<double>(), limit) << what << " " << have.sizes();
}

void expect_same(const at::Tensor& one, const at::Tensor& other, const char* what) {
  if (one.defined()) {
    EXPECT_TRUE(one.nan_to_num(12345).equal(other.nan_to_num(12345)))
        << what << ": the same bits every time";
  }
}

struct Size {
  int64_t rows;
  int64_t columns;
};

// --- norm --------------------------------------------------------------------------------------

KernelRuns::NormInput norm_input(Size size, at::ScalarType type, bool has_branch,
                                 double probability) {
  const auto [rows, columns] = size;
  return {.x = (at::randn({rows, columns}) + 0.7).to(type),
          .branch = has_branch ? at::randn({rows, columns}).to(type) : at::Tensor(),
          .weight = at::rand({columns}) + 0.5,
          .bias = at::randn({columns}),
          .dropout = {.probability = probability}};
}

void check_norm(const KernelRuns& gpu_runs, const KernelRuns::NormInput& input, bool has_sum) {
  const double limit = tolerance(input.x.scalar_type());
  const auto want = kTwins.norm_forward(input);
  const auto have = gpu_runs.norm_forward(input);
  expect_near(have.sum, want.sum, 0, "sum");
  expect_near(have.out, want.out, limit, "out");
  expect_near(have.mean, want.mean, 1e-5, "mean");
  expect_near(have.rstd, want.rstd, 1e-5, "rstd");
  const bool has_branch = input.branch.defined();
  const at::Tensor& x = input.x;
  KernelRuns::NormGradientsAsked asked{
      .grad_out = at::randn(x.sizes()).to(x.scalar_type()),
      .grad_sum = has_sum ? at::randn(x.sizes()).to(x.scalar_type()) : at::Tensor(),
      .branch = has_branch && input.dropout.probability > 0,
      .branch_bias = has_branch,
      .accumulate = !has_sum};
  const auto want_back = kTwins.norm_backward(input, want, asked);
  const auto back = gpu_runs.norm_backward(input, want, asked);
  expect_near(back.x, want_back.x, limit, "grad_x");
  expect_near(back.branch, want_back.branch, limit, "grad_branch");
  expect_near(back.weight, want_back.weight, 1e-4, "grad_weight");
  expect_near(back.bias, want_back.bias, 1e-4, "grad_bias");
  expect_near(back.branch_bias, want_back.branch_bias, 1e-4, "grad_branch_bias");
  const auto again = gpu_runs.norm_backward(input, want, asked);
  expect_same(again.weight, back.weight, "grad_weight");
  expect_same(again.branch_bias, back.branch_bias, "grad_branch_bias");
}

TEST_F(Kernels, NormIsItsTwin) {
  // One for each way to lay out a row, then what fits none of them: odd, too long, nothing.
  const Size sizes[] = {{5, 64},   {37, 256}, {9, 768},  {3, 1000}, {4, 1608}, {3, 3072},
                        {2, 4096}, {3, 5000}, {2, 8192}, {7, 1},    {6, 33},   {3, 771},
                        {2, 9001}, {0, 768},  {0, 5},    {700, 24}};
  for (const Size& size : sizes) {
    for (const at::ScalarType type : kTypes) {
      check_norm(runs(), norm_input(size, type, /*has_branch=*/true, 0), /*has_sum=*/true);
      check_norm(runs(), norm_input(size, type, /*has_branch=*/true, 0.2), /*has_sum=*/false);
    }
  }
  check_norm(runs(), norm_input({9, 768}, at::kBFloat16, /*has_branch=*/false, 0), true);
  check_norm(runs(), norm_input({9, 100}, at::kFloat, /*has_branch=*/false, 0), false);
}

// --- gelu --------------------------------------------------------------------------------------

TEST_F(Kernels, GeluIsItsTwin) {
  for (const Size& size : {Size{5, 64}, Size{67, 3072}, Size{33, 40}, Size{3, 1}, Size{9, 771},
                           Size{2, 9001}, Size{0, 64}, Size{300, 264}}) {
    for (const at::ScalarType type : kTypes) {
      for (const int32_t form : {LOCKSTEP_GELU_ERF, LOCKSTEP_GELU_TANH}) {
        const at::Tensor x = (at::randn({size.rows, size.columns}) * 4).to(type);
        const at::Tensor grad_out = at::randn({size.rows, size.columns}).to(type);
        expect_near(runs().gelu_forward(x, form), kTwins.gelu_forward(x, form), tolerance(type),
                    "gelu");
        const bool accumulate = form == LOCKSTEP_GELU_ERF;
        const auto have = runs().gelu_backward(x, grad_out, form, accumulate);
        const auto want = kTwins.gelu_backward(x, grad_out, form, accumulate);
        expect_near(have.x, want.x, tolerance(type), "gelu's gradient");
        expect_near(have.bias, want.bias, 1e-4, "the bias's gradient");
        expect_same(runs().gelu_backward(x, grad_out, form, accumulate).bias, have.bias, "bias");
      }
    }
  }
}

TEST_F(Kernels, GeluHoldsFarFromZero) {
  const at::Tensor x =
      at::tensor({-200.0f, -30.0f, -6.0f, -0.0f, 1e-30f, 6.0f, 30.0f, 200.0f}).view({1, 8});
  for (const at::ScalarType type : kTypes) {
    for (const int32_t form : {LOCKSTEP_GELU_ERF, LOCKSTEP_GELU_TANH}) {
      const at::Tensor at_x = x.to(type);
      expect_near(runs().gelu_forward(at_x, form), kTwins.gelu_forward(at_x, form), 1e-6, "gelu");
      expect_near(runs().gelu_backward(at_x, at_x, form).x,
                  kTwins.gelu_backward(at_x, at_x, form).x, 1e-2, "slope");
    }
  }
}

// --- cross entropy -----------------------------------------------------------------------------

void check_entropy(const KernelRuns& gpu_runs, const at::Tensor& logits, const at::Tensor& labels,
                   const KernelRuns::EntropyOptions& options) {
  const auto want = kTwins.cross_entropy(logits, labels, options);
  const auto have = gpu_runs.cross_entropy(logits, labels, options);
  expect_near(have.losses, want.losses, 2e-5, "losses");
  expect_near(have.result, want.result, 2e-5, "result");
  if (options.gradient) {
    // A gradient is at most this, and one a thousand times smaller is still right.
    const double unit = 1e-3 * options.scale / std::max(want.result[1].item<double>(), 1.0);
    expect_near(have.logits.to(at::kDouble) / unit, want.logits.to(at::kDouble) / unit,
                logits.scalar_type() == at::kFloat ? 2e-4 : 1.0 / 128, "gradient");
  } else {
    EXPECT_TRUE(have.logits.nan_to_num(1e5).equal(logits.nan_to_num(1e5)));
  }
  const auto again = gpu_runs.cross_entropy(logits, labels, options);
  expect_same(again.result, have.result, "result");
}

TEST_F(Kernels, CrossEntropyIsItsTwin) {
  struct Case {
    int64_t rows;
    int64_t classes;
    int64_t stride;
  };
  // Both kernels: with whole 16 bytes and room in shared memory, and without.
  for (const Case& c :
       {Case{300, 50, 64}, Case{7, 50257, 50304}, Case{3, 1001, 1001}, Case{5, 1, 8},
        Case{2, 65536, 65536}, Case{2, 63999, 64000}, Case{9, 10, 10}, Case{4, 2056, 2056}}) {
    for (const at::ScalarType type : kTypes) {
      const at::Tensor logits = (at::randn({c.rows, c.stride}) * 3).to(type);
      const at::Tensor labels = at::randint(0, c.classes, {c.rows}, at::kLong);
      labels[c.rows / 2] = -100;
      labels[0] = c.classes - 1;
      check_entropy(runs(), logits, labels, {.classes = c.classes, .scale = 512});
      check_entropy(runs(), logits, labels, {.classes = c.classes, .gradient = false});
    }
  }
}

TEST_F(Kernels, CrossEntropyOfOddInputsIsItsTwins) {
  for (const at::ScalarType type : kTypes) {
    at::Tensor logits = at::randn({6, 2048}).to(type);
    logits[1] *= 1000;                                       // far from 0
    logits[2][5] = -std::numeric_limits<float>::infinity();  // impossible
    logits[3].slice(0, 100, 2048).fill_(-std::numeric_limits<float>::infinity());
    logits[4][2047] = std::numeric_limits<float>::quiet_NaN();  // beyond the classes
    const at::Tensor labels = at::tensor({1, 2, 3, 4, 5, -100}, at::kLong);
    check_entropy(runs(), logits, labels, {.classes = 2047});
    check_entropy(runs(), logits, at::full({6}, -100, at::kLong), {.classes = 2047});
    logits[4][9] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(
        runs().cross_entropy(logits, labels, {.classes = 2047}).losses[4].item<float>()));
    labels[0] = 2047;
    EXPECT_TRUE(std::isnan(
        runs().cross_entropy(logits, labels, {.classes = 2047}).losses[0].item<float>()));
  }
  const auto none =
      runs().cross_entropy(at::empty({0, 16}), at::empty({0}, at::kLong), {.classes = 16});
  EXPECT_EQ(none.result[1].item<float>(), 0);
}

TEST_F(Kernels, ScaleIsItsTwin) {
  for (const at::ScalarType type : kTypes) {
    for (const int64_t count : {0, 1, 7, 4096, 100003}) {
      const at::Tensor x = at::randn({count}).to(type);
      expect_near(runs().scale(x, 2.7f), kTwins.scale(x, 2.7f), 0, "scaled");
      expect_near(runs().scale(x, 1.0f), x, 0, "as it was");
    }
  }
}

// --- embedding ---------------------------------------------------------------------------------

TEST_F(Kernels, EmbeddingIsItsTwin) {
  struct Case {
    int64_t rows;
    int64_t columns;
    int64_t vocabulary;
    int64_t period;
  };
  // Vocabularies of one, two and three digits; runs within a block, over two and over many.
  for (const Case& c : {Case{96, 768, 50257, 32}, Case{1000, 40, 7, 10}, Case{33, 5, 300, 33},
                        Case{64, 16, 70000, 16}, Case{3000, 8, 2, 100}, Case{1, 3, 1, 1},
                        Case{5000, 4, 1000, 50}, Case{0, 8, 10, 4}}) {
    for (const at::ScalarType type : kTypes) {
      KernelRuns::EmbeddingInput input{.ids = at::randint(0, c.vocabulary, {c.rows}, at::kLong),
                                       .tokens = at::randn({c.vocabulary, c.columns}).to(type),
                                       .positions = at::randn({c.period, c.columns}).to(type),
                                       .type = c.columns == 40 ? at::kFloat : type,
                                       .dropout = {.probability = c.columns == 16 ? 0.3 : 0.0}};
      if (c.columns == 5) {
        input.segments = at::randn({2, 5}).to(type);
        input.segment_ids = at::randint(0, 2, {c.rows}, at::kLong);
        input.ids[4] = -3;
        input.ids[9] = c.vocabulary;
      }
      expect_near(runs().embedding_forward(input), kTwins.embedding_forward(input), tolerance(type),
                  "embedding");
      const auto sorted = runs().embedding_sort(input.ids, c.vocabulary);
      const auto want = kTwins.embedding_sort(input.ids, c.vocabulary);
      EXPECT_TRUE(sorted.order.equal(want.order)) << c.rows << " rows of " << c.vocabulary;
      EXPECT_TRUE(sorted.ids.equal(want.ids)) << c.rows << " rows of " << c.vocabulary;
      const at::Tensor grad_out = at::randn({c.rows, c.columns}).to(type);
      const at::Tensor table = at::randn({c.vocabulary, c.columns});
      const at::Tensor after = runs().embedding_backward(input, grad_out, table);
      expect_near(after, kTwins.embedding_backward(input, grad_out, table), 1e-4, "grad_table");
      expect_same(runs().embedding_backward(input, grad_out, table), after, "grad_table");
      expect_near(runs().position_backward(input, grad_out),
                  kTwins.position_backward(input, grad_out), 1e-4, "grad_positions");
    }
  }
}

// --- optimizers --------------------------------------------------------------------------------

KernelRuns::OptimizerInput optimizer_input(at::ScalarType type) {
  KernelRuns::OptimizerInput input;
  for (const int64_t count : {9000, 3, 0, 4096, 1, 777}) {
    const bool shifted = count == 777;  // not aligned
    const auto own = [&](const at::Tensor& tensor) {
      return shifted ? at::cat({at::zeros({1}, tensor.options()), tensor}).slice(0, 1) : tensor;
    };
    input.before.masters.push_back(own(at::randn({count})));
    input.before.first.push_back(own(at::randn({count}) * 0.1));
    input.before.second.push_back(own(at::rand({count}) * 0.1));
    input.before.copies.push_back(count == 3 ? at::Tensor() : at::zeros({count}, at::kBFloat16));
    input.gradients.push_back(at::randn({count}).to(type));
    input.decays.push_back(count == 1 ? 0.0f : 0.1f);
  }
  input.before.state.learning_rate = 1e-2f;
  input.before.state.grad_scale = 0.25f;
  input.before.state.max_norm = 2;
  return input;
}

void check_optimizer(const KernelRuns& gpu_runs, KernelRuns::OptimizerInput input) {
  for (int step = 0; step < 3; ++step) {
    const auto want = kTwins.optimizer_step(input);
    const auto have = gpu_runs.optimizer_step(input);
    EXPECT_EQ(have.state.step, want.state.step);
    EXPECT_EQ(have.state.skipped, want.state.skipped);
    EXPECT_NEAR(have.state.norm, want.state.norm, 1e-5 * want.state.norm);
    EXPECT_NEAR(have.state.factor, want.state.factor, 1e-5 * want.state.factor);
    for (size_t i = 0; i < input.gradients.size(); ++i) {
      expect_near(have.masters[i], want.masters[i], 2e-6, "master");
      expect_near(have.first[i], want.first[i], 2e-6, "first moment");
      expect_near(have.second[i], want.second[i], 2e-6, "second moment");
      if (have.copies[i].defined()) {
        EXPECT_TRUE(have.copies[i].equal(have.masters[i].to(at::kBFloat16))) << i;
      }
    }
    input.before = have;
  }
}

TEST_F(Kernels, OptimizersAreTheirTwins) {
  for (const at::ScalarType type : kTypes) {
    KernelRuns::OptimizerInput input = optimizer_input(type);
    check_optimizer(runs(), input);
    input.clips = false;
    check_optimizer(runs(), input);
    input.sgd = true;
    check_optimizer(runs(), input);
    input.nesterov = true;
    check_optimizer(runs(), input);
    input.nesterov = false;
    input.before.first.assign(input.gradients.size(), at::Tensor());
    check_optimizer(runs(), input);
  }
}

TEST_F(Kernels, AStepThatIsNotFiniteChangesNothing) {
  KernelRuns::OptimizerInput input = optimizer_input(at::kFloat);
  input.gradients[0][8999] = std::numeric_limits<float>::quiet_NaN();
  const auto after = runs().optimizer_step(input);
  EXPECT_EQ(after.state.skipped, 1);
  EXPECT_EQ(after.state.step, 0);
  for (size_t i = 0; i < input.gradients.size(); ++i) {
    EXPECT_TRUE(after.masters[i].equal(input.before.masters[i])) << i;
    EXPECT_TRUE(after.second[i].equal(input.before.second[i])) << i;
  }
}

// --- batch norm --------------------------------------------------------------------------------

TEST_F(Kernels, BatchNormIsItsTwin) {
  for (const Size& size : {Size{500, 64}, Size{98, 512}, Size{60, 2048}, Size{1, 16}, Size{77, 3},
                           Size{900, 13}, Size{40, 271}}) {
    for (const at::ScalarType type : kTypes) {
      for (const bool has_residual : {false, true}) {
        const auto [rows, channels] = size;
        const KernelRuns::BatchNormInput input{
            .x = (at::randn({rows, channels}) * 2 + 5).to(type),
            .residual = has_residual ? at::randn({rows, channels}).to(type) : at::Tensor(),
            .weight = at::rand({channels}) + 0.5,
            .bias = at::randn({channels}),
            .running_mean = at::randn({channels}),
            .running_var = at::rand({channels}) + 1,
            .relu = has_residual || channels != 512};
        const auto want = kTwins.batch_norm_forward(input);
        const auto have = runs().batch_norm_forward(input);
        expect_near(have.mean, want.mean, 1e-5, "mean");
        expect_near(have.rstd, want.rstd, rows == 1 ? 1e-4 : 1e-5, "rstd");
        expect_near(have.running_mean, want.running_mean, 1e-5, "running_mean");
        expect_near(have.running_var, want.running_var, 1e-5, "running_var");
        expect_near(have.out, want.out, tolerance(type), "out");
        const at::Tensor grad_out = at::randn({rows, channels}).to(type);
        const auto want_back = kTwins.batch_norm_backward(input, want, grad_out);
        const auto back = runs().batch_norm_backward(input, want, grad_out);
        expect_near(back.x, want_back.x, rows == 1 ? 1e-3 : tolerance(type), "grad_x");
        expect_near(back.residual, want_back.residual, 0, "grad_residual");
        expect_near(back.weight, want_back.weight, 1e-4, "grad_weight");
        expect_near(back.bias, want_back.bias, 1e-4, "grad_bias");
        const auto again = runs().batch_norm_backward(input, want, grad_out);
        expect_same(again.weight, back.weight, "grad_weight");
        expect_same(again.x, back.x, "grad_x");
      }
    }
  }
}

TEST_F(Kernels, SayWhatTheyCannotTake) {
  const LockstepKernels& kernels = *cuda_kernels();
  const LockstepGeluForward half{.rows = 1, .columns = 1, .type = LOCKSTEP_FLOAT16};
  EXPECT_STREQ(kernels.gelu_forward(&half, nullptr), "activations must be float32 or bfloat16");
  const LockstepCrossEntropy wide{.rows = 1, .classes = 9, .stride = 8};
  EXPECT_STREQ(kernels.cross_entropy(&wide, nullptr), "classes must be in [1, stride]");
  LockstepEmbeddingForward drops{.rows = 1, .columns = 1, .vocabulary = 1, .period = 1};
  drops.dropout.probability = 1;
  EXPECT_STREQ(kernels.embedding_forward(&drops, nullptr),
               "a dropout's probability must be in [0, 0.9999)");
}

}  // namespace
}  // namespace lockstep::device
