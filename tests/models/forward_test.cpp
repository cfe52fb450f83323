#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <lockstep/models/bert.h>
#include <lockstep/models/gpt2.h>
#include <lockstep/models/my_transformer.h>

#include "support/refusal.h"

namespace lockstep::test {
namespace {

MyTransformerOptions small() {
  return {.vocab_size = 97,
          .hidden_size = 16,
          .num_layers = 2,
          .num_heads = 4,
          .ffn_size = 32,
          .max_positions = 8};
}

BertOptions small_bert() {
  return {.vocab_size = 97,
          .hidden_size = 16,
          .num_layers = 2,
          .num_heads = 4,
          .ffn_size = 32,
          .max_positions = 8};
}

at::Tensor some_ids(int64_t time) {
  return at::arange(time, at::kLong).unsqueeze(0);
}

TEST(MyTransformer, NoTokenSeesTheNext) {
  MyTransformer model(small());
  model->eval();
  const at::Tensor whole = model(some_ids(8));
  EXPECT_TRUE(model(some_ids(5)).allclose(whole.slice(1, 0, 5), 1e-5, 1e-6));
}

TEST(MyTransformer, WithoutPositionsTakesAnyLength) {
  MyTransformerOptions options = small();
  options.max_positions = 0;
  MyTransformer model(options);
  EXPECT_FALSE(model->named_parameters().contains("positions.weight"));
  EXPECT_EQ(model(some_ids(50)).sizes(), (at::IntArrayRef{1, 50, 97}));
}

TEST(MyTransformer, DropsOnlyWhenItTrains) {
  MyTransformer model(small());
  EXPECT_FALSE(model(some_ids(8)).equal(model(some_ids(8))));
  model->eval();
  EXPECT_TRUE(model(some_ids(8)).equal(model(some_ids(8))));
}

TEST(GPT2, DropsOnlyWhenItTrains) {
  GPT2 model(GPT2Options{.vocab_size = 97, .hidden_size = 16, .num_layers = 1, .num_heads = 4});
  EXPECT_FALSE(model(some_ids(8)).equal(model(some_ids(8))));
  model->eval();
  EXPECT_TRUE(model(some_ids(8)).equal(model(some_ids(8))));
}

TEST(Bert, PaddingChangesNothing) {
  Bert model(small_bert());
  model->eval();
  const at::Tensor ids = at::tensor({5, 6, 7, 0, 0}, at::kLong).unsqueeze(0);
  const at::Tensor mask = at::tensor({1, 1, 1, 0, 0}, at::kLong).unsqueeze(0);
  const at::Tensor alone = model->embed({.ids_BT = ids.slice(1, 0, 3)});
  EXPECT_TRUE(model->embed({.ids_BT = ids, .attention_mask_BT = mask}).allclose(alone, 1e-5, 1e-6));
  EXPECT_NEAR(alone.norm().item<double>(), 1, 1e-6);
}

TEST(Bert, ASequenceWithoutTokensIsZeroNotNan) {
  Bert model(small_bert());
  model->eval();
  const at::Tensor mask = at::tensor({1, 1, 0, 0}, at::kLong).view({2, 2});
  const at::Tensor vectors =
      model->embed({.ids_BT = at::ones({2, 2}, at::kLong), .attention_mask_BT = mask});
  EXPECT_NEAR(vectors[0].norm().item<double>(), 1, 1e-6);
  EXPECT_EQ(vectors[1].norm().item<double>(), 0);
}

TEST(Bert, DropsOnlyWhenItTrains) {
  BertForSequenceClassification model(small_bert());
  const BertInput input{.ids_BT = some_ids(8)};
  EXPECT_FALSE(model(input).equal(model(input)));
  model->eval();
  EXPECT_TRUE(model(input).equal(model(input)));
}

TEST(Forward, RefusesWhatDoesNotFit) {
  MyTransformer mine(small());
  EXPECT_EQ(refusal([&] { mine(some_ids(9)); }),
            "MyTransformer: a sequence has 9 tokens, the model has positions for 8; cut it");
  EXPECT_EQ(refusal([&] {
              mine(at::ones({2, 3}));
            }),
            "MyTransformer: the ids must be int64 [batch, time], and they are Float [2, 3]");
  EXPECT_EQ(refusal([&] { mine(at::Tensor()); }),
            "MyTransformer: the ids must be int64 [batch, time], and they are undefined");
  Bert bert(small_bert());
  const BertInput input{.ids_BT = some_ids(8), .attention_mask_BT = at::ones({1, 7}, at::kLong)};
  EXPECT_EQ(refusal([&] { bert->forward(input); }),
            "BERT: the attention mask has shape [1, 7], the ids have [1, 8]");
}

TEST(Forward, RefusesOptionsOutOfRange) {
  EXPECT_EQ(refusal([] { MyTransformer(MyTransformerOptions{.hidden_size = 100}); }),
            "the model's hidden_size 100 is not a multiple of its 8 heads");
  EXPECT_EQ(refusal([] { GPT2(GPT2Options{.num_layers = -1}); }),
            "the model's num_layers is -1, it must be in [0, 1024]");
}

}  // namespace
}  // namespace lockstep::test
