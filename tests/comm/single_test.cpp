// A group of one, and the checks that every group makes before anything is sent.

#include <functional>
#include <optional>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/comm/group.h>

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(SingleGroup, EveryOperationIsTheIdentity) {
  Group group = make_single_group();
  EXPECT_EQ(group.rank(), 0);
  EXPECT_EQ(group.size(), 1);
  EXPECT_EQ(group.backend_name(), "single");
  const at::Tensor x = at::arange(6, at::kFloat);
  for (const ReduceOp op :
       {ReduceOp::Sum, ReduceOp::Average, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product}) {
    at::Tensor y = x.clone();
    group.all_reduce(y, {.op = op});
    EXPECT_TRUE(y.equal(x));
  }
  at::Tensor y = at::zeros({6});
  group.all_gather(y, x);
  EXPECT_TRUE(y.equal(x));
  y.zero_();
  group.reduce_scatter(y, x);
  EXPECT_TRUE(y.equal(x));
  at::Tensor z = at::zeros({3, 2});
  group.all_to_all(z, x.view({3, 2}));
  EXPECT_TRUE(z.view({-1}).equal(x));
  group.broadcast(y);
  group.barrier();
  Work work = group.all_reduce_async(y);
  EXPECT_TRUE(work.done());
  work.wait();
  EXPECT_TRUE(work.wait_for(std::chrono::milliseconds(0)));
}

TEST(SingleGroup, CopiesShareTheIdAndNoOtherGroupHasIt) {
  std::optional<Group> first = make_single_group();
  const Group copy = *first;
  const uint64_t id = first->id();
  EXPECT_EQ(copy.id(), id);
  first.reset();
  EXPECT_NE(make_single_group().id(), id);
}

TEST(SingleGroup, HasNoStoreAndSaysSo) {
  EXPECT_THROW(make_single_group().store(), UsageError);
}

void expect_usage_error(const std::function<void(Group&)>& body, const std::string& part) {
  Group group = make_single_group();
  try {
    body(group);
    FAIL() << "nothing was thrown; expected: " << part;
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

TEST(GroupChecks, TensorsThatCannotBeSent) {
  const at::Tensor x = at::zeros({4, 4});
  expect_usage_error([&](Group& g) { g.all_reduce(at::Tensor()); }, "undefined");
  expect_usage_error([&](Group& g) { g.all_reduce(x.t().narrow(0, 0, 2)); }, "not contiguous");
  expect_usage_error([&](Group& g) { g.broadcast(x.to_sparse()); }, "sparse");
  expect_usage_error([&](Group& g) { g.all_reduce(at::zeros({2}, at::kComplexFloat)); },
                     "supported are float32");
  expect_usage_error([&](Group& g) { g.all_reduce(at::zeros({2}, at::kMeta)); },
                     "of the CPU and of CUDA");
}

TEST(GroupChecks, ReductionsThatMakeNoSense) {
  expect_usage_error([](Group& g) { g.all_reduce(at::zeros({2}), {.op = ReduceOp::BitAnd}); },
                     "bitwise");
  expect_usage_error([](Group& g) { g.all_reduce(at::zeros({2}, at::kBool)); }, "BitAnd (all)");
  expect_usage_error(
      [](Group& g) { g.all_reduce(at::zeros({2}, at::kLong), {.op = ReduceOp::Average}); },
      "average");
}

TEST(GroupChecks, ShapesAndTypesThatDoNotFit) {
  const at::Tensor x = at::zeros({4});
  expect_usage_error([&](Group& g) { g.all_gather(at::zeros({3}), x); }, "must have 4");
  expect_usage_error([&](Group& g) { g.all_gather(at::zeros({4}, at::kDouble), x); }, "one type");
  expect_usage_error([&](Group& g) { g.reduce_scatter(at::zeros({3}), x); }, "must have 3");
  expect_usage_error([&](Group& g) { g.all_to_all(x, x, {.input_splits = {3}}); },
                     "input_splits add up to 3");
  expect_usage_error(
      [&](Group& g) {
        g.all_to_all(x, x, {.output_splits = {2, 2}});
      },
      "2 entries for 1 ranks");
  expect_usage_error([&](Group& g) { g.all_to_all(x, x, {.input_splits = {-4}}); },
                     "do not add up");
  expect_usage_error([&](Group& g) { g.all_to_all(at::zeros({5}), x); }, "expects 5");
}

TEST(GroupChecks, RanksTagsAndTimeouts) {
  const at::Tensor x = at::zeros({4});
  expect_usage_error([&](Group& g) { g.broadcast(x, {.root = 1}); }, "root 1 is not in [0, 1)");
  expect_usage_error([&](Group& g) { g.send(x, 3); }, "peer 3");
  expect_usage_error([&](Group& g) { g.recv(x, 0); }, "this rank itself");
  expect_usage_error([&](Group& g) { g.barrier({.timeout = std::chrono::milliseconds(-5)}); },
                     "negative");
}

}  // namespace
}  // namespace lockstep
