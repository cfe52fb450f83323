// The operations on tensors of a GPU, held against the same oracle as those of the CPU. All ranks
// share one GPU, which proves the order of copies, streams and sums as well as several would.

#include <future>
#include <thread>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/comm/c10d.h>

#include "comm/every_backend.h"
#include "comm/oracle.h"
#include "support/gpu.h"

namespace lockstep {
namespace {

using testing_support::gpu;
using testing_support::input_of;
using testing_support::is_reducible;
using testing_support::rank_argument;
using testing_support::reduced;

// The last is several pieces of staging memory, and a shorter one.
const std::vector<int64_t> kSizes = {0, 1, 1001, (7 << 20) / 2 + 3};
const std::vector<at::ScalarType> kTypes = {at::kFloat,    at::kDouble, at::kHalf,
                                            at::kBFloat16, at::kChar,   at::kByte,
                                            at::kInt,      at::kLong,   at::kBool};
const std::vector<ReduceOp> kOps = {ReduceOp::Sum,  ReduceOp::Average, ReduceOp::Min,
                                    ReduceOp::Max,  ReduceOp::Product, ReduceOp::BitAnd,
                                    ReduceOp::BitOr};

std::vector<at::ScalarType> types_for(int64_t numel) {
  return numel > 100000 ? std::vector<at::ScalarType>{at::kFloat} : kTypes;
}

int64_t size_argument() {
  return std::stoll(rank_argument());
}

// Keeps the current stream busy for some milliseconds, so that whoever does not wait for it reads
// what was there before.
void keep_busy() {
  static const at::Tensor matrix = at::full({4096, 4096}, 1e-4f, gpu());
  for (int i = 0; i < 4; ++i) {
    at::mm(matrix, matrix);
  }
}

class Cuda : public testing_support::EveryBackend {
 protected:
  void SetUp() override { LOCKSTEP_NEEDS_GPU(); }

  void for_worlds_and_sizes(testing_support::RankBody body) {
    for (const int world : {1, 2, 3, 4}) {
      for (const int64_t size : kSizes) {
        SCOPED_TRACE(::testing::Message() << "world " << world << ", size " << size);
        run(world, body, {.argument = std::to_string(size)});
      }
    }
  }
};

TEST_P(Cuda, AllReduceEveryTypeAndReduction) {
  for_worlds_and_sizes([](Group& group) {
    ASSERT_EQ(cuda_problem(), "");
    const int64_t numel = size_argument();
    for (const at::ScalarType type : types_for(numel)) {
      for (const ReduceOp op : kOps) {
        if (!is_reducible(type, op) || (numel > 100000 && op != ReduceOp::Sum)) {
          continue;
        }
        const at::Tensor x = input_of(group.rank(), numel, type, 0, op).to(gpu());
        group.all_reduce(x, {.op = op});
        EXPECT_TRUE(x.cpu().equal(reduced(group.size(), numel, type, op)))
            << "type " << c10::toString(type) << ", op " << static_cast<int>(op);
      }
    }
  });
}

TEST_P(Cuda, BroadcastGatherScatterAndExchange) {
  for_worlds_and_sizes([](Group& group) {
    ASSERT_EQ(cuda_problem(), "");
    const int64_t numel = size_argument();
    const int size = group.size();
    for (const at::ScalarType type : types_for(numel)) {
      const auto text = c10::toString(type);
      const int root = static_cast<int>(type) % size;
      const at::Tensor x = input_of(group.rank(), numel, type).to(gpu());
      group.broadcast(x, {.root = root});
      EXPECT_TRUE(x.cpu().equal(input_of(root, numel, type))) << text;

      const at::Tensor all = at::empty({size, numel}, x.options());
      group.all_gather(all, input_of(group.rank(), numel, type).to(gpu()));
      const at::Tensor from_all = at::empty({size, numel}, x.options());
      group.all_to_all(from_all,
                       input_of(group.rank(), numel * size, type).view({size, numel}).to(gpu()));
      for (int rank = 0; rank < size; ++rank) {
        EXPECT_TRUE(all[rank].cpu().equal(input_of(rank, numel, type))) << text;
        EXPECT_TRUE(from_all[rank].cpu().equal(input_of(rank, numel, type, numel * group.rank())))
            << text;
      }
      if (is_reducible(type, ReduceOp::Sum)) {
        const at::Tensor part = at::empty({numel}, x.options());
        group.reduce_scatter(
            part, input_of(group.rank(), numel * size, type, 0, ReduceOp::Sum).to(gpu()));
        EXPECT_TRUE(
            part.cpu().equal(reduced(size, numel, type, ReduceOp::Sum, numel * group.rank())))
            << text;
      }
    }
  });
}

TEST_P(Cuda, MessagesGoRoundTheRing) {
  for (const int world : {2, 3}) {
    for (const int64_t size : kSizes) {
      run(world,
          [](Group& group) {
            ASSERT_EQ(cuda_problem(), "");
            const int64_t numel = size_argument();
            const int next = (group.rank() + 1) % group.size();
            const int previous = (group.rank() + group.size() - 1) % group.size();
            const at::Tensor got = at::empty({numel}, at::TensorOptions(gpu()));
            const at::Tensor mine = at::zeros_like(got);
            Work receive = group.recv_async(got, previous, {.tag = 7});
            keep_busy();
            mine.copy_(input_of(group.rank(), numel, at::kFloat));
            group.send(mine, next, {.tag = 7});
            receive.wait();
            EXPECT_TRUE((got + 0).cpu().equal(input_of(previous, numel, at::kFloat)));
          },
          {.argument = std::to_string(size)});
    }
  }
}

// Nobody synchronises: the input is still being computed when the operation is started, the result
// is used at once, and memory that was given back is used again.
TEST_P(Cuda, StreamsOrderEverything) {
  run(3, [](Group& group) {
    ASSERT_EQ(cuda_problem(), "");
    const int64_t numel = 3'000'001;
    std::vector<at::Tensor> results;
    for (int round = 0; round < 10; ++round) {
      keep_busy();
      const at::Tensor x =
          at::full({numel}, static_cast<float>(group.rank() + round), at::TensorOptions(gpu()));
      Work work = group.all_reduce_async(x);
      const at::Tensor noise = at::randn({numel}, at::TensorOptions(gpu()));
      keep_busy();
      work.wait();
      results.push_back(
          x.eq(3.0f + 3.0f * static_cast<float>(round)).all().logical_and(noise.lt(100).all()));
    }
    for (int round = 0; round < 10; ++round) {
      EXPECT_TRUE(results[static_cast<size_t>(round)].item<bool>()) << round;
    }
  });
}

// A caller with a stream of its own, as a training step under a graph has.
TEST_P(Cuda, FollowTheCallersStream) {
  run(2, [](Group& group) {
    ASSERT_EQ(cuda_problem(), "");
    const c10::impl::VirtualGuardImpl runtime(at::kCUDA);
    const c10::StreamGuard guard(runtime.getStreamFromGlobalPool(gpu()));
    keep_busy();
    const at::Tensor x =
        at::full({1'500'000}, static_cast<float>(group.rank() + 1), at::TensorOptions(gpu()));
    group.all_reduce(x);
    const at::Tensor y = x * 1;
    EXPECT_TRUE(y.cpu().equal(at::full({1'500'000}, 3.0f)));
  });
}

TEST_P(Cuda, BothKindsOfTensorsKeepOneOrder) {
  run(2, [](Group& group) {
    ASSERT_EQ(cuda_problem(), "");
    std::vector<Work> works;
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 30; ++i) {
      const at::Device device = i % 3 == 0 ? at::Device(at::kCPU) : gpu();
      tensors.push_back(
          at::full({1000 + i}, static_cast<float>(group.rank() + i), at::TensorOptions(device)));
      works.push_back(group.all_reduce_async(tensors.back()));
      if (i % 7 == 0) {
        group.barrier();
      }
    }
    at::Tensor last = at::ones({3});
    group.all_reduce(last);
    EXPECT_TRUE(last.equal(at::full({3}, 2.0f)));
    for (int i = 29; i >= 0; --i) {
      works[static_cast<size_t>(i)].wait();
      EXPECT_TRUE(tensors[static_cast<size_t>(i)].cpu().equal(
          at::full({1000 + i}, static_cast<float>(2 * i + 1))))
          << i;
    }
  });
}

TEST_P(Cuda, CallbacksComeAfterTheResult) {
  run(2, [](Group& group) {
    ASSERT_EQ(cuda_problem(), "");
    const at::Tensor x = at::ones({2'000'000}, at::TensorOptions(gpu()));
    std::promise<float> promise;
    keep_busy();
    Work work = group.all_reduce_async(x);
    work.on_done([&](const std::exception_ptr& error) {
      promise.set_value(error ? -1.0f : x.mean().item<float>());
    });
    EXPECT_EQ(promise.get_future().get(), 2.0f);
    work.wait();
  });
}

TEST_P(Cuda, C10dFindsTheGroup) {
  run(2, [](Group& group) {
    ASSERT_EQ(cuda_problem(), "");
    const auto process_group = make_process_group(group);
    at::Tensor x = at::full({1001}, static_cast<float>(group.rank() + 1), at::TensorOptions(gpu()));
    std::vector<at::Tensor> tensors = {x};
    process_group->allreduce(tensors)->wait();
    EXPECT_TRUE((x * 1).cpu().equal(at::full({1001}, 3.0f)));
    std::vector<std::vector<at::Tensor>> outputs = {
        {at::empty({5}, x.options()), at::empty({5}, x.options())}};
    std::vector<at::Tensor> inputs = {at::full({5}, static_cast<float>(group.rank()), x.options())};
    process_group->allgather(outputs, inputs)->wait();
    EXPECT_TRUE((outputs[0][1] * 1).cpu().equal(at::ones({5})));
  });
}

TEST_P(Cuda, ADeadRankIsNamed) {
  run(3,
      [](Group& group) {
        ASSERT_EQ(cuda_problem(), "");
        const at::Tensor x = at::ones({100'000}, at::TensorOptions(gpu()));
        group.all_reduce(x);
        if (group.rank() == 1) {
          testing_support::die_now();
        }
        EXPECT_THROW(
            {
              for (int i = 0; i < 1000; ++i) {
                group.all_reduce(x);
              }
            },
            PeerLostError);
        EXPECT_THROW(group.all_reduce(x), PeerLostError);  // for good
      },
      {.dies = {1}});
}

// More than a piece: the pieces of one rank must not meet the whole tensor of another.
TEST_P(Cuda, ATensorOfTheCpuOnOneRankIsFoundOut) {
  testing_support::RunOptions options;
  if (is_gloo()) {
    options.env = {"LOCKSTEP_CHECK_COLLECTIVES=1"};
  }
  run(
      2,
      [](Group& group) {
        ASSERT_EQ(cuda_problem(), "");
        const at::Device device = group.rank() == 0 ? at::Device(at::kCPU) : gpu();
        const at::Tensor x = at::ones({5'000'000}, at::TensorOptions(device));
        try {
          group.all_reduce(x);
          ADD_FAILURE() << "nobody noticed";
        } catch (const DesyncError& error) {
          const std::string text = error.what();
          EXPECT_NE(text.find("5000000 elements) on cuda"), std::string::npos) << text;
          EXPECT_NE(text.find("5000000 elements) on the CPU"), std::string::npos) << text;
        }
      },
      options);
}

// A receiver's own work on the tensor comes before the message that it receives.
TEST_P(Cuda, MessagesComeAfterTheStream) {
  run(2, [](Group& group) {
    ASSERT_EQ(cuda_problem(), "");
    const at::Tensor x = at::full({1'000'000}, 2.0f, at::TensorOptions(gpu()));
    if (group.rank() == 0) {
      group.send(x, 1);  // comes while its receiver's stream is busy
    } else {
      keep_busy();
      x.fill_(-1.0f);
      group.recv(x, 0);
      EXPECT_TRUE((x + 0).cpu().equal(at::full({1'000'000}, 2.0f)));
    }
  });
}

// A tensor that was let go while its values were still on the way: nobody else gets its memory.
TEST_P(Cuda, MemoryIsKeptUntilTheLastCopy) {
  run(2, [](Group& group) {
    ASSERT_EQ(cuda_problem(), "");
    const int64_t numel = 64 << 20;
    std::vector<at::Tensor> intact;
    for (int round = 0; round < 20; ++round) {
      {
        const at::Tensor x = at::full({numel}, 7.0f, at::TensorOptions(gpu()));
        Work work = group.broadcast_async(x, {.root = 0});
        while (!work.done()) {
          std::this_thread::yield();
        }
      }
      const at::Tensor y = at::full({numel}, 3.0f, at::TensorOptions(gpu()));
      keep_busy();
      intact.push_back(y.eq(3.0f).all());
    }
    for (const at::Tensor& is_intact : intact) {
      EXPECT_TRUE(is_intact.item<bool>());
    }
  });
}

// Autograd watches a leaf: the values that come from other ranks are none of its operations.
TEST_P(Cuda, ALeafCanBeReduced) {
  run(2, [](Group& group) {
    ASSERT_EQ(cuda_problem(), "");
    const at::Tensor x =
        at::full({3}, static_cast<float>(group.rank() + 1), at::TensorOptions(gpu()))
            .set_requires_grad(true);
    const at::Tensor loss = (x * x).sum();
    const auto version = x._version();
    group.all_reduce(x);
    EXPECT_EQ(x._version(), version);
    EXPECT_TRUE((x * 1).detach().cpu().equal(at::full({3}, 3.0f)));
    loss.backward();
    EXPECT_TRUE(x.grad().defined());
  });
}

// The copies that finish an allgather are made by another thread, whose stream is the default one.
TEST_P(Cuda, C10dFuturesFollowTheCallersStream) {
  run(2, [](Group& group) {
    ASSERT_EQ(cuda_problem(), "");
    const auto process_group = make_process_group(group);
    const c10::impl::VirtualGuardImpl runtime(at::kCUDA);
    const int64_t numel = 1'000'000;
    std::vector<at::Tensor> sums;
    for (int round = 0; round < 10; ++round) {
      keep_busy();  // on the default stream
      const c10::StreamGuard guard(runtime.getStreamFromGlobalPool(gpu()));
      const at::TensorOptions options(gpu());
      std::vector<at::Tensor> inputs = {
          at::full({numel}, static_cast<float>(group.rank() + round), options)};
      std::vector<std::vector<at::Tensor>> outputs = {
          {at::zeros({numel}, options), at::zeros({numel}, options)}};
      process_group->allgather(outputs, inputs)->wait();
      const at::Tensor reused = at::full({2 * numel}, -1.0f, options);  // where it was gathered
      sums.push_back(outputs[0][0].mean() + 2 * outputs[0][1].mean() - 3 * round + reused.mean());
    }
    for (const at::Tensor& sum : sums) {
      EXPECT_EQ(sum.item<float>(), 1.0f);
    }
  });
}

// On a machine with several GPUs: 500 MB of the first one for each rank, or an error there.
TEST_P(Cuda, OtherGpusAreLeftAlone) {
  if (at::getNumGPUs() < 2) {
    GTEST_SKIP() << "needs two GPUs; tests/device/current_device_test.cpp has a pretended one";
  }
  run(2,
      [](Group& group) {
        ASSERT_EQ(cuda_problem(), "");
        const at::Tensor x =
            at::full({2'000'000}, 1.0f, at::TensorOptions(at::Device(at::kCUDA, 1)));
        group.all_reduce(x);
        Work work = group.all_reduce_async(x);
        std::promise<void> called;
        work.on_done([&](const std::exception_ptr&) { called.set_value(); });
        work.wait();
        called.get_future().wait();
        Work receive = group.recv_async(x, 1 - group.rank());
        group.send(at::ones_like(x), 1 - group.rank());
        receive.wait();
        EXPECT_EQ(x.mean().item<float>(), 1.0f);
        EXPECT_TRUE(at::detail::getCUDAHooks().hasPrimaryContext(1));
        EXPECT_FALSE(at::detail::getCUDAHooks().hasPrimaryContext(0));
      },
      {.env = {"LOCKSTEP_LOG_LEVEL=warn"}});  // processes that have not used the first one before
}

TEST_P(Cuda, OneDevicePerCall) {
  run(2, [](Group& group) {
    ASSERT_EQ(cuda_problem(), "");
    const at::Tensor output = at::empty({4}, at::TensorOptions(gpu()));
    EXPECT_THROW(group.all_gather(output, at::ones({2})), UsageError);
    group.barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(On, Cuda, ::testing::ValuesIn(testing_support::kEveryBackend),
                         testing_support::name_of);

}  // namespace
}  // namespace lockstep
