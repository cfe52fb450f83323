// The Functions on words, FusedEmbedding, PaddedVocabulary and FusedCrossEntropy, on the kernels'
// twins.

#include <cmath>

#include "device/functions/functions.h"
#include "functions_checks.h"

namespace lockstep::device {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using testing_support::expect_same;
using testing_support::expect_second_derivatives_refused;
using testing_support::float_gradcheck;
using testing_support::leaf;
using testing_support::Tensors;
using testing_support::worst_of;

class WordFunctions : public testing::Test {
 protected:
  void SetUp() override { at::manual_seed(7); }
};

// --- embedding ---------------------------------------------------------------------------------

constexpr int64_t kPadding = 3;

at::Tensor embedded(const Tensors& x, const at::Tensor& ids, const at::Tensor& kinds,
                    double dropout = 0) {
  return embedding(ids, {.tokens = x[0],
                         .positions = x.size() > 1 ? x[1] : at::Tensor(),
                         .segments = x.size() > 2 ? x[2] : at::Tensor(),
                         .segment_ids = x.size() > 2 ? kinds : at::Tensor(),
                         .padding = kPadding,
                         .dropout = dropout});
}

TEST_F(WordFunctions, EmbeddingIsThatOfItsOperators) {
  for (const auto& [batch, time] :
       {std::pair<int64_t, int64_t>(3, 5), std::pair<int64_t, int64_t>(1, 1),
        std::pair<int64_t, int64_t>(0, 4), std::pair<int64_t, int64_t>(2, 0)}) {
    const at::Tensor ids = at::randint(0, 7, {time, batch}, at::kLong).t();
    const at::Tensor kinds = at::randint(0, 2, {batch, time}, at::kLong);
    if (ids.numel() > 1) {
      ids[0][0] = kPadding;
    }
    const Tensors all{at::randn({7, 6}), at::randn({9, 6}), at::randn({2, 6})};
    for (size_t tables = 1; tables <= 3; ++tables) {
      expect_same(
          {all.begin(), all.begin() + static_cast<int64_t>(tables)},
          [&](const Tensors& x) { return Tensors{embedded(x, ids, kinds)}; },
          [&, time = time](const Tensors& x) {
            at::Tensor sum = at::embedding(x[0], ids, kPadding);
            if (x.size() > 1) {
              sum = sum + at::embedding(x[1], at::arange(time, at::kLong));
            }
            return Tensors{x.size() > 2 ? sum + at::embedding(x[2], kinds) : sum};
          });
    }
  }
}

TEST_F(WordFunctions, EmbeddingHasTheDerivativeOfItsValues) {
  // The padding's row has a derivative, but gets none: no id here is the padding.
  const at::Tensor ids = at::tensor({0, 2, 2, 1, 0, 2}, at::kLong).reshape({2, 3});
  const at::Tensor kinds = at::tensor({0, 0, 1, 1, 1, 1}, at::kLong).reshape({2, 3});
  float_gradcheck({at::randn({4, 2}), at::randn({3, 2}), at::randn({2, 2})},
                  [&](const Tensors& x) { return embedded(x, ids, kinds); });
}

TEST_F(WordFunctions, EmbeddingDropsTheSameElementsForwardAndBackward) {
  const at::Tensor ids = at::randint(0, 7, {40, 30}, at::kLong);
  const at::Tensor kinds = at::randint(0, 2, {40, 30}, at::kLong);
  const Tensors tables{leaf(at::ones({7, 33}), at::kFloat), leaf(at::zeros({30, 33}), at::kFloat),
                       leaf(at::zeros({2, 33}), at::kFloat)};
  const at::Tensor mask = embedded(tables, ids, kinds, 0.2);
  EXPECT_NEAR((mask.detach() != 0).to(at::kDouble).mean().item<double>(), 0.8, 0.01);
  mask.sum().backward();
  const at::Tensor rows = mask.detach().to(at::kDouble).flatten(0, 1);
  const auto sums = [&](const at::Tensor& of, int64_t num) {
    return at::zeros({num, 33}, at::kDouble).index_add(0, of.flatten(), rows);
  };
  at::Tensor by_id = sums(ids, 7);
  by_id[kPadding].zero_();
  EXPECT_LT(worst_of(tables[0].grad(), by_id), 1e-3);
  EXPECT_LT(worst_of(tables[1].grad(), rows.unflatten(0, {40, 30}).sum(0)), 1e-3);
  EXPECT_LT(worst_of(tables[2].grad(), sums(kinds, 2)), 1e-3);
}

TEST_F(WordFunctions, EmbeddingGivesOnlyTheGradientsThatAreWanted) {
  const at::Tensor ids = at::tensor({0, 2, 2, 1, 0, 2}, at::kLong).reshape({2, 3});
  // The middle table is frozen: the others' gradients must not move up.
  const Tensors tables{at::randn({4, 2}), at::randn({3, 2}), leaf(at::randn({2, 2}), at::kFloat)};
  embedded(tables, ids, ids.clamp_max(1)).sum().backward();
  EXPECT_TRUE(tables[2].grad().equal(at::tensor({2.f, 2.f, 4.f, 4.f}).reshape({2, 2})));
  EXPECT_FALSE(tables[0].grad().defined());
  expect_second_derivatives_refused(embedded(tables, ids, ids.clamp_max(1)).sum(), tables[2]);
  EXPECT_TRUE(
      embedding(at::full({1, 1}, 9, at::kLong), {.tokens = tables[0]}).isnan().all().item<bool>());
  EXPECT_THROW(
      embedding(at::zeros({1, 4}, at::kLong), {.tokens = tables[0], .positions = tables[1]}),
      InternalError);
}

// --- cross entropy -----------------------------------------------------------------------------

at::Tensor entropy_of(const at::Tensor& logits, const at::Tensor& labels) {
  return at::cross_entropy_loss(logits, labels, {}, at::Reduction::Mean, -100);
}

at::Tensor some_labels(int64_t rows, int64_t classes) {
  const at::Tensor labels = at::randint(0, classes, {rows}, at::kLong);
  labels[rows / 2] = -100;
  labels[0] = classes - 1;
  return labels;
}

TEST_F(WordFunctions, CrossEntropyIsThatOfItsOperators) {
  for (const auto& [rows, classes] : {std::pair(5, 13), std::pair(3, 1), std::pair(9, 64)}) {
    const at::Tensor labels = some_labels(rows, classes);
    const at::Tensor logits = at::randn({rows, classes}) * 3;
    expect_same(
        {logits}, [&](const Tensors& x) { return Tensors{cross_entropy(x[0], labels, {})}; },
        [&](const Tensors& x) { return Tensors{entropy_of(x[0], labels)}; });
    expect_same(
        {logits.t().contiguous()},
        [&](const Tensors& x) { return Tensors{cross_entropy(x[0].t(), labels, {})}; },
        [&](const Tensors& x) { return Tensors{entropy_of(x[0].t(), labels)}; });
  }
  const at::Tensor labels = some_labels(4, 6);
  float_gradcheck({at::randn({4, 6})},
                  [&](const Tensors& x) { return cross_entropy(x[0], labels, {}); });
}

TEST_F(WordFunctions, CrossEntropyIsScaledByWhatComesBack) {
  const at::Tensor labels = some_labels(6, 10);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor values = (at::randn({6, 10}) * 2).to(type);
    const auto gradient_of = [&](double factor) {
      const at::Tensor logits = leaf(values, type);
      (cross_entropy(logits, labels, {}) * factor).backward();
      EXPECT_EQ(logits.grad().scalar_type(), type);
      return logits.grad();
    };
    const at::Tensor one = gradient_of(1);
    EXPECT_TRUE(gradient_of(-4).equal(one * -4)) << "a power of two is exact";
    EXPECT_TRUE(gradient_of(0).equal(at::zeros_like(one)));
    EXPECT_LT(worst_of(gradient_of(3), one * 3), type == at::kFloat ? 1e-7 : 4e-3);
  }
}

TEST_F(WordFunctions, CrossEntropyConsumesLogitsOnlyIfItMay) {
  const at::Tensor labels = some_labels(6, 10);
  const at::Tensor values = at::randn({6, 16});
  const auto logits_in = [&](const at::Tensor& memory) {
    return memory.detach().narrow(1, 0, 10).requires_grad_();
  };
  const at::Tensor kept = values.clone();
  const at::Tensor first = logits_in(kept);
  cross_entropy(first, labels, {}).backward();
  EXPECT_TRUE(kept.equal(values)) << "the caller keeps them";
  const at::Tensor given = values.clone();
  const at::Tensor second = logits_in(given);
  cross_entropy(second, labels, {.consumes = true}).backward();
  EXPECT_TRUE(second.grad().equal(first.grad()));
  EXPECT_TRUE(given.narrow(1, 0, 10).equal(first.grad())) << "in their memory";
  EXPECT_EQ(given.narrow(1, 10, 6).abs().sum().item<double>(), 0) << "what pads is 0";
  // The last row has nothing behind it, so the others' padding cannot be written either.
  const at::Tensor tight = values.clone().flatten().slice(0, 0, 5 * 16 + 10).clone();
  const at::Tensor third = tight.detach().as_strided({6, 10}, {16, 1}).requires_grad_();
  cross_entropy(third, labels, {.consumes = true}).backward();
  EXPECT_TRUE(third.grad().equal(first.grad()));
  {
    const at::NoGradGuard no_grad;
    const at::Tensor memory = values.clone();
    const at::Tensor loss = cross_entropy(logits_in(memory), labels, {.consumes = true});
    EXPECT_TRUE(memory.equal(values)) << "no gradient, nothing to write";
    EXPECT_LT(worst_of(loss, entropy_of(values.narrow(1, 0, 10), labels)), 1e-6);
  }
}

TEST_F(WordFunctions, CrossEntropyTellsWhoeverSavedConsumedLogits) {
  const at::Tensor labels = some_labels(4, 6);
  const at::Tensor logits = leaf(at::randn({4, 6}), at::kFloat);
  const at::Tensor made = logits * 2;
  const at::Tensor other = made.pow(2).sum();  // saves them
  const at::Tensor loss = cross_entropy(made, labels, {.consumes = true});
  EXPECT_THAT([&] { (loss + other).backward(); },
              ThrowsMessage<c10::Error>(HasSubstr("modified by an inplace operation")));
}

TEST_F(WordFunctions, CrossEntropyGivesItsGradientOnce) {
  const at::Tensor labels = some_labels(4, 6);
  const at::Tensor logits = leaf(at::randn({4, 6}), at::kFloat);
  const at::Tensor loss = cross_entropy(logits, labels, {});
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_THAT([&] { loss.backward(); },
              ThrowsMessage<UsageError>(HasSubstr("a second backward pass through one loss")));
  expect_second_derivatives_refused(cross_entropy(logits, labels, {}), logits);
  EXPECT_FALSE(cross_entropy(logits.detach(), labels, {}).requires_grad());
}

TEST_F(WordFunctions, CrossEntropyOfNothingIsNan) {
  const at::Tensor none = leaf(at::randn({0, 5}), at::kFloat);
  const at::Tensor loss = cross_entropy(none, at::empty({0}, at::kLong), {});
  EXPECT_TRUE(std::isnan(loss.item<double>()));
  loss.backward();
  EXPECT_EQ(none.grad().numel(), 0);
  const at::Tensor ignored = at::full({3}, -100, at::kLong);
  EXPECT_TRUE(std::isnan(cross_entropy(at::randn({3, 5}), ignored, {}).item<double>()));
  EXPECT_THROW(cross_entropy(at::randn({3, 5}), at::randn({3}), {}), InternalError);
}

TEST_F(WordFunctions, IsLastOwnerCountsHandlesAndViews) {
  at::Tensor x = at::randn({3, 4});
  EXPECT_TRUE(is_last_owner(x));
  {
    const at::Tensor again = x;
    EXPECT_FALSE(is_last_owner(x));
  }
  {
    const at::Tensor view = x.select(0, 1);
    EXPECT_FALSE(is_last_owner(x));
    EXPECT_FALSE(is_last_owner(view));
  }
  EXPECT_TRUE(is_last_owner(x));
}

// --- a vocabulary ------------------------------------------------------------------------------

at::Tensor scores_of(const Tensors& x, at::ScalarType type = at::kFloat) {
  return vocabulary_linear(
      {.x = x[0], .weight = x[1], .bias = x.size() > 2 ? x[2] : at::Tensor(), .type = type});
}

TEST_F(WordFunctions, VocabularyLinearIsThatOfItsOperators) {
  for (const int64_t words : {1, 63, 64, 97}) {
    for (const bool has_bias : {false, true}) {
      for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{2, 3, 5}, {4, 5}, {0, 5}}) {
        Tensors inputs{at::randn(sizes), at::randn({words, 5})};
        if (has_bias) {
          inputs.push_back(at::randn({words}));
        }
        expect_same(
            inputs, [](const Tensors& x) { return Tensors{scores_of(x)}; },
            [](const Tensors& x) {
              return Tensors{x.size() > 2 ? at::linear(x[0], x[1], x[2]) : at::linear(x[0], x[1])};
            });
      }
    }
  }
  float_gradcheck({at::randn({2, 3}), at::randn({5, 3}), at::randn({5})},
                  [](const Tensors& x) { return scores_of(x).contiguous(); });
  const Tensors x{leaf(at::randn({2, 3}), at::kFloat), at::randn({5, 3})};
  expect_second_derivatives_refused(scores_of(x).pow(2).sum(), x[0]);
}

// The whole end of a language model: what pads is neither read nor makes a gradient.
TEST_F(WordFunctions, VocabularyAndItsCrossEntropyShareOneMemory) {
  const at::Tensor labels = some_labels(6, 70);
  const Tensors inputs{at::randn({2, 3, 5}), at::randn({70, 5}), at::randn({70})};
  expect_same(
      inputs,
      [&](const Tensors& x) {
        at::Tensor logits = scores_of(x);
        EXPECT_EQ(logits.stride(1), 128);
        EXPECT_TRUE(is_last_owner(logits)) << "or every step would copy them";
        return Tensors{cross_entropy(logits.flatten(0, 1), labels, {.consumes = true})};
      },
      [&](const Tensors& x) {
        return Tensors{entropy_of(at::linear(x[0], x[1], x[2]).flatten(0, 1), labels)};
      });
  // In memory of another tensor with the same strides, what pads may be anything.
  const at::Tensor x = leaf(inputs[0], at::kFloat);
  const at::Tensor weight = leaf(inputs[1], at::kFloat);
  at::Tensor gradient = at::full({2, 3, 128}, std::nan(""));
  gradient.narrow(2, 0, 70).copy_(at::randn({2, 3, 70}));
  scores_of({x, weight}).backward(gradient.narrow(2, 0, 70));
  EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
  EXPECT_TRUE(weight.grad().isfinite().all().item<bool>());
}

TEST_F(WordFunctions, VocabularyInBfloat16HasAWeightInFloat32) {
  const at::Tensor x = leaf(at::randn({4, 8}), at::kFloat);
  const at::Tensor weight = leaf(at::randn({30, 8}), at::kFloat);
  const at::Tensor scores = scores_of({x, weight}, at::kBFloat16);
  EXPECT_EQ(scores.scalar_type(), at::kBFloat16);
  EXPECT_LT(worst_of(scores, at::linear(x, weight)), 0.1);
  scores.sum().backward();
  EXPECT_EQ(weight.grad().scalar_type(), at::kFloat);
  EXPECT_EQ(x.grad().scalar_type(), at::kFloat);
  EXPECT_LT(worst_of(weight.grad(), x.sum(0).expand({30, 8})), 0.1);
}

}  // namespace
}  // namespace lockstep::device
