#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/data/loader.h>

#include "support/refusal.h"

namespace lockstep {
namespace {

using test::refusal;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Three samples of four tensors; all numbers differ.
Batch texts() {
  return {.input = at::arange(6, at::kLong).view({3, 2}),
          .target = at::arange(10, 13, at::kLong),
          .more = {{"weight", at::arange(3, at::kFloat).add(20)},
                   {"attention_mask", at::arange(6, at::kLong).view({3, 2}).ne(3)}}};
}

TEST(Batch, TheShortFormsHaveTwoTensors) {
  const at::Tensor a = at::arange(3), b = at::arange(3).add(7);
  for (const Batch& batch : {Batch{a, b}, Batch{.input = a, .target = b}}) {
    EXPECT_TRUE(batch.input.is_same(a));
    EXPECT_TRUE(batch["target"].is_same(b));
    EXPECT_TRUE(batch.more.empty());
    EXPECT_THAT(batch.names(), ElementsAre("input", "target"));
    EXPECT_EQ(batch.num_samples(), 3);
  }
}

TEST(Batch, BindsToInputAndTarget) {
  Batch batch = texts();
  const auto& [input, target] = batch;
  EXPECT_TRUE(input.is_same(batch.input));
  EXPECT_TRUE(target.is_same(batch.target));
  auto& [to_change, unchanged] = batch;
  to_change = at::arange(2);
  EXPECT_EQ(batch.input.numel(), 2);
  EXPECT_TRUE(unchanged.is_same(batch.target));
  int64_t sum = 0;
  for (auto [rows, numbers] : batches({batch.target, batch.target + 1}, {.indices = {2, 0}})) {
    sum += 100 * rows.sum().item<int64_t>() + numbers.sum().item<int64_t>();
  }
  EXPECT_EQ(sum, 100 * (12 + 10) + 13 + 11);
}

// An autoencoder's: noise that is added to its input must not reach its target.
TEST(NamedColumns, OneTensorUnderTwoNamesIsGatheredTwice) {
  const at::Tensor rows = at::arange(8, at::kFloat).view({4, 2});
  const at::Tensor expected = rows.index_select(0, at::tensor({3, 1}, at::kLong));
  const Batch in_a_loop = batches({rows, rows}, {.indices = {3, 1}, .batch_size = 2}).at(0);
  in_a_loop.input.add_(1);
  EXPECT_TRUE(in_a_loop.target.equal(expected));
  const std::vector<SampleKey> samples{{.index = 3}, {.index = 1}};
  const Batch of_dataset = make_dataset({rows, rows})->batch(samples);
  of_dataset.input.add_(1);
  EXPECT_TRUE(of_dataset.target.equal(expected));
}

TEST(Batch, FindsEveryTensorByName) {
  const Batch batch = texts();
  EXPECT_THAT(batch.names(), ElementsAre("input", "target", "weight", "attention_mask"));
  EXPECT_TRUE(batch["input"].is_same(batch.input));
  EXPECT_TRUE(batch["weight"].is_same(batch.more.begin()->second));
  EXPECT_TRUE(batch.find("attention_mask").is_same(batch["attention_mask"]));
  EXPECT_TRUE(batch.contains("weight"));
  EXPECT_FALSE(batch.contains("token_types"));
  EXPECT_FALSE(batch.find("token_types").defined());
}

TEST(Batch, ANameThatIsNotThereIsRefusedWithTheNearest) {
  const Batch batch = texts();
  EXPECT_THAT(refusal([&] { batch["atention_mask"]; }),
              AllOf(HasSubstr("no tensor \"atention_mask\""),
                    HasSubstr("input, target, weight, attention_mask"),
                    HasSubstr("did you mean attention_mask?")));
  EXPECT_THAT(refusal([&] { batch["x"]; }), Not(HasSubstr("did you mean")));
  EXPECT_THAT(refusal([] { Batch{.input = at::ones({1}), .target = {}}["target"]; }),
              AllOf(HasSubstr("no tensor \"target\""), HasSubstr("there is input")));
  EXPECT_THAT(refusal([] { Batch()["input"]; }), HasSubstr("none at all"));
}

TEST(Batch, SetsFieldsAndNames) {
  Batch batch = texts();
  const at::Tensor other = at::full({3}, 5);
  batch.set("weight", other);
  batch.set("target", other);
  batch.set("token_types", other);
  EXPECT_THAT(batch.names(),
              ElementsAre("input", "target", "weight", "attention_mask", "token_types"));
  EXPECT_TRUE(batch["weight"].is_same(other));
  EXPECT_TRUE(batch.target.is_same(other));
  EXPECT_TRUE(texts().more.find("weight").equal(at::arange(3).add(20))) << "a map of its own";
}

TEST(Batch, RefusesNamesThatCannotBe) {
  const at::Tensor x = at::ones({2});
  EXPECT_THAT(refusal([&] {
                TensorMap map{{"target", x}};
              }),
              AllOf(HasSubstr("\"target\" is a field"), HasSubstr(".target = ")));
  EXPECT_THAT(refusal([&] { TensorMap().set("input", x); }), HasSubstr("\"input\" is a field"));
  EXPECT_THAT(refusal([&] { TensorMap map{{"", x}}; }), HasSubstr("has no name"));
  EXPECT_THAT(refusal([&] { TensorMap map{{"mask", {}}}; }), HasSubstr("\"mask\" is undefined"));
  EXPECT_THAT(refusal([&] {
                TensorMap map{{"mask", x}, {"other", x}, {"mask", x}};
              }),
              HasSubstr("two tensors have the name \"mask\""));
}

TEST(Batch, CountsItsSamplesByTheTargetFirst) {
  const at::Tensor four = at::zeros({4, 2}), six = at::zeros({6});
  EXPECT_EQ((Batch{.input = four, .target = six}.num_samples()), 6);
  EXPECT_EQ((Batch{.input = four, .target = {}, .more = {{"x", six}}}.num_samples()), 4);
  EXPECT_EQ((Batch{.input = {}, .target = {}, .more = {{"x", six}, {"y", four}}}.num_samples()), 6);
  EXPECT_THAT(refusal([] { Batch().num_samples(); }), HasSubstr("no tensor"));
  EXPECT_THAT(refusal([&] { Batch{.input = four, .target = at::ones({})}.num_samples(); }),
              HasSubstr("\"target\" is a single number"));
}

TEST(Batch, MapChangesEachTensorOnceAndKeepsWhatIsShared) {
  const at::Tensor ids = at::arange(4, at::kLong), mask = at::arange(4, at::kFloat).add(1);
  const Batch batch{.input = ids, .target = ids, .more = {{"mask", mask}, {"again", mask}}};
  int calls = 0;
  const Batch changed = batch.map([&](const at::Tensor& tensor) {
    ++calls;
    return tensor.mul(3);
  });
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(changed.names(), batch.names());
  EXPECT_TRUE(changed.input.equal(ids * 3));
  EXPECT_TRUE(changed.input.is_same(changed.target));
  EXPECT_TRUE(changed["mask"].equal(mask * 3));
  EXPECT_TRUE(changed["again"].is_same(changed["mask"]));
  EXPECT_TRUE(batch["mask"].is_same(mask)) << "the batch itself is left as it was";
}

TEST(Batch, VisitsWhatIsDefinedAlone) {
  std::vector<std::string> seen;
  const Batch batch{.input = {}, .target = at::ones({1}), .more = {{"b", at::zeros({1})}}};
  batch.for_each_tensor([&](const std::string& name, const at::Tensor& tensor) {
    EXPECT_TRUE(tensor.defined());
    seen.push_back(name);
  });
  EXPECT_THAT(seen, ElementsAre("target", "b"));
  EXPECT_FALSE(batch.map([](const at::Tensor& x) { return x; }).input.defined());
}

TEST(Batch, MovesEveryTensorToADevice) {
  const Batch moved = texts().to(at::kMeta);
  moved.for_each_tensor(
      [](const std::string& name, const at::Tensor& x) { EXPECT_TRUE(x.is_meta()) << name; });
  EXPECT_EQ(moved.names(), texts().names());
  EXPECT_EQ(moved["attention_mask"].scalar_type(), at::kBool);
  const Batch here = texts();
  EXPECT_TRUE(here.to(at::kCPU)["weight"].is_same(here["weight"])) << "nothing is copied";
}

// The three ways in which samples in memory become batches.
TEST(NamedColumns, AreGatheredByTheSameIndices) {
  const Batch all = texts();
  const TensorDataset data{.input = all.input, .target = all.target, .more = all.more};
  EXPECT_EQ(data.size(), 3);
  Loader loader(make_dataset(data), {.num_workers = 2});
  loader.start({2, 0}, 2, 0, 0);
  const at::Tensor rows = at::tensor({2, 0}, at::kLong);
  for (const Batch& batch :
       {batches(data, {.indices = {2, 0}, .batch_size = 2}).at(0),
        make_dataset(data)->batch(std::vector<SampleKey>{{.index = 2}, {.index = 0}}),
        *loader.next()}) {
    EXPECT_EQ(batch.names(), all.names());
    all.for_each_tensor([&](const std::string& name, const at::Tensor& column) {
      EXPECT_TRUE(batch[name].equal(column.index_select(0, rows))) << name;
    });
  }
}

TEST(NamedColumns, MayStandInForInputAndTarget) {
  const TensorDataset data{
      .input = {}, .target = {}, .more = {{"query", at::arange(3)}, {"answer", at::arange(3) * 5}}};
  const Batch batch = make_dataset(data)->batch(std::vector<SampleKey>{{.index = 2}});
  EXPECT_EQ(batch["answer"].item<int64_t>(), 10);
  EXPECT_EQ(batches(data, {.indices = {1}}).at(0)["answer"].item<int64_t>(), 5);
}

// An autoencoder that adds noise to its input must not add it to what it is compared with.
TEST(NamedColumns, AreTensorsOfTheirOwnAlsoWhereTheDatasetHasOneTwice) {
  const at::Tensor x = at::arange(8, at::kFloat).view({4, 2});
  for (Batch batch : batches({.input = x, .target = x}, {.indices = {2, 0}, .batch_size = 2})) {
    batch.input.add_(1);
    EXPECT_TRUE(batch.target.equal(at::tensor({4.0f, 5.0f, 0.0f, 1.0f}).view({2, 2})));
  }
  Loader loader(make_dataset({.input = x, .target = x}), {.num_workers = 0});
  loader.start({3}, 1, 1, 0);
  const Batch batch = *loader.next();
  batch.input.add_(1);
  EXPECT_TRUE(batch.target.equal(at::tensor({6.0f, 7.0f}).view({1, 2})));
}

TEST(NamedColumns, MustHaveTheSameNumberOfRows) {
  const auto refuses = [](const TensorDataset& data, const auto& matcher) {
    EXPECT_THAT(refusal([&] { make_dataset(data); }), matcher);
    EXPECT_THAT(refusal([&] { batches(data, {.indices = {0}}); }), matcher);
  };
  const at::Tensor three = at::ones({3}), two = at::ones({2, 5});
  refuses({.input = three, .target = three, .more = {{"mask", two}}},
          AllOf(HasSubstr("the same number of rows"), HasSubstr("\"input\" has 3"),
                HasSubstr("\"mask\" has 2")));
  refuses({.input = three, .target = three, .more = {{"scale", at::ones({})}}},
          HasSubstr("\"scale\" is a single number"));
  refuses({.input = three, .target = {}}, HasSubstr("the target is undefined"));
}

}  // namespace
}  // namespace lockstep
