// c10d's own Reducer, over our groups: what DDP of PyTorch does in C++.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <lockstep/base/error.h>
#include <lockstep/comm/c10d.h>

#include "support/fleet.h"

namespace lockstep {
namespace {

using testing_support::run_ranks;

at::Tensor parameter(int64_t rows, int64_t columns, double start) {
  return at::arange(rows * columns, at::kDouble)
      .view({rows, columns})
      .add(start)
      .set_requires_grad(true);
}

TEST(C10dBackend, ReducerAveragesGradientsOverOurGroup) {
  for (const int world : {1, 2, 3}) {
    run_ranks(world, [](Group& group) {
      const std::vector<at::Tensor> parameters = {parameter(3, 4, 0), parameter(4, 2, 1)};
      constexpr int64_t kBucketBytes = 1 << 20;
      c10d::Reducer reducer(parameters, {{1}, {0}}, make_process_group(group), {false, false},
                            kBucketBytes, false, true, {}, kBucketBytes, false, false, {});
      for (int step = 0; step < 3; ++step) {
        const at::Tensor input = at::full({2, 3}, group.rank() + 1.0, at::kDouble);
        const at::Tensor output = input.mm(parameters[0]).mm(parameters[1]).sum();
        reducer.prepare_for_forward();
        reducer.prepare_for_backward({output});
        torch::autograd::backward({output}, {});
        // The mean over ranks: the loss is linear in the input.
        const at::Tensor mean = at::full({2, 3}, (group.size() + 1) / 2.0, at::kDouble);
        const at::Tensor expected =
            mean.t().mm(at::ones({2, 2}, at::kDouble).mm(parameters[1].detach().t()));
        EXPECT_TRUE(parameters[0].grad().allclose(expected)) << "step " << step;
        parameters[0].mutable_grad().zero_();
        parameters[1].mutable_grad().zero_();
      }
    });
  }
}

TEST(C10dBackend, EveryOperationGivesWhatC10dPromises) {
  run_ranks(3, [](Group& group) {
    const auto process_group = make_process_group(group);
    const auto backend = process_group->getBackend(at::kCPU);
    const int rank = group.rank();
    std::vector<at::Tensor> one = {at::full({5}, static_cast<float>(rank))};
    backend->allreduce(one, {})->wait();
    EXPECT_TRUE(one[0].equal(at::full({5}, 3.0f)));

    one = {at::full({2}, static_cast<float>(rank))};
    std::vector<std::vector<at::Tensor>> parts = {{at::empty({2}), at::empty({2}), at::empty({2})}};
    const auto work = backend->allgather(parts, one, {});
    work->getFuture()->wait();
    EXPECT_TRUE(work->isSuccess());
    EXPECT_TRUE(parts[0][2].equal(at::full({2}, 2.0f)));

    std::vector<at::Tensor> outputs = {at::empty({1})};
    std::vector<std::vector<at::Tensor>> inputs = {{at::zeros({1}), at::ones({1}), at::ones({1})}};
    backend->reduce_scatter(outputs, inputs, {})->wait();
    EXPECT_EQ(outputs[0].item<float>(), rank == 0 ? 0.0f : 3.0f);

    at::Tensor input = at::full({3}, static_cast<float>(rank));
    at::Tensor output = at::empty({3});
    std::vector<int64_t> equal_parts;
    backend->alltoall_base(output, input, equal_parts, equal_parts, {})->wait();
    EXPECT_TRUE(output.equal(at::arange(3, at::kFloat)));

    one = {at::full({1}, 7.0f)};
    if (rank == 0) {
      backend->send(one, 2, 5)->wait();
    } else if (rank == 2) {
      one[0].zero_();
      backend->recv(one, 0, 5)->wait();
      EXPECT_EQ(one[0].item<float>(), 7.0f);
    }
    backend->barrier({})->wait();
  });
}

TEST(C10dBackend, WhatTheGroupRefusesIsRefused) {
  run_ranks(1, [](Group& group) {
    const auto backend = make_c10d_backend(group);
    std::vector<at::Tensor> two = {at::ones({1}), at::ones({1})};
    EXPECT_THROW(backend->allreduce(two, {}), UsageError);
    std::vector<at::Tensor> one = {at::ones({1})};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::BXOR;
    EXPECT_THROW(backend->allreduce(one, options), UsageError);
  });
}

}  // namespace
}  // namespace lockstep
