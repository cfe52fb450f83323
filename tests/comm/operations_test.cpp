// Every operation against an oracle: what each rank should hold is computed from all ranks' inputs,
// which are a pure function of (rank, type, size).

#include <chrono>
#include <future>
#include <sstream>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <lockstep/base/log.h>

#include "comm/every_backend.h"
#include "comm/oracle.h"

namespace lockstep {
namespace {

using testing_support::input_of;
using testing_support::is_reducible;
using testing_support::rank_argument;
using testing_support::reduced;

const std::vector<int> kWorlds = {1, 2, 3, 4, 7, 8};
const std::vector<int64_t> kSizes = {0, 1, 1001,
                                     (1 << 18) + 1};  // the last: 1 MB of floats, and one
const std::vector<at::ScalarType> kTypes = {at::kFloat,    at::kDouble, at::kHalf,
                                            at::kBFloat16, at::kChar,   at::kByte,
                                            at::kInt,      at::kLong,   at::kBool};

const std::vector<ReduceOp> kOps = {ReduceOp::Sum,  ReduceOp::Average, ReduceOp::Min,
                                    ReduceOp::Max,  ReduceOp::Product, ReduceOp::BitAnd,
                                    ReduceOp::BitOr};

// The body runs for one size; the large one only with floats, to stay quick.
std::vector<at::ScalarType> types_for(int64_t numel) {
  return numel > 100000 ? std::vector<at::ScalarType>{at::kFloat} : kTypes;
}

class Operations : public testing_support::EveryBackend {
 protected:
  void for_all_worlds_and_sizes(testing_support::RankBody body) {
    for (const int world : kWorlds) {
      for (const int64_t size : kSizes) {
        SCOPED_TRACE(::testing::Message() << "world " << world << ", size " << size);
        run(world, body, {.argument = std::to_string(size)});
      }
    }
  }
};

int64_t size_argument() {
  return std::stoll(rank_argument());
}

TEST_P(Operations, AllReduceEveryTypeAndReduction) {
  for_all_worlds_and_sizes([](Group& group) {
    const int64_t numel = size_argument();
    for (const at::ScalarType type : types_for(numel)) {
      for (const ReduceOp op : kOps) {
        if (!is_reducible(type, op) ||
            (numel > 100000 && op != ReduceOp::Sum && op != ReduceOp::Average)) {
          continue;
        }
        at::Tensor x = input_of(group.rank(), numel, type, 0, op);
        group.all_reduce(x, {.op = op});
        EXPECT_TRUE(x.equal(reduced(group.size(), numel, type, op)))
            << "type " << c10::toString(type) << ", op " << static_cast<int>(op);
      }
    }
  });
}

TEST_P(Operations, BroadcastFromEveryRoot) {
  for_all_worlds_and_sizes([](Group& group) {
    const int64_t numel = size_argument();
    for (const at::ScalarType type : types_for(numel)) {
      const int root = static_cast<int>(type) % group.size();
      at::Tensor x = input_of(group.rank(), numel, type);
      group.broadcast(x, {.root = root});
      EXPECT_TRUE(x.equal(input_of(root, numel, type))) << c10::toString(type);
    }
  });
}

TEST_P(Operations, AllGatherInTheOrderOfRanks) {
  for_all_worlds_and_sizes([](Group& group) {
    const int64_t numel = size_argument();
    for (const at::ScalarType type : types_for(numel)) {
      at::Tensor all = at::empty({group.size(), numel}, type);
      group.all_gather(all, input_of(group.rank(), numel, type));
      for (int rank = 0; rank < group.size(); ++rank) {
        EXPECT_TRUE(all[rank].equal(input_of(rank, numel, type)))
            << c10::toString(type) << " of rank " << rank;
      }
    }
  });
}

TEST_P(Operations, ReduceScatterGivesEachRankItsPart) {
  for_all_worlds_and_sizes([](Group& group) {
    const int64_t numel = size_argument();
    for (const at::ScalarType type : types_for(numel)) {
      for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average, ReduceOp::BitOr}) {
        if (!is_reducible(type, op) || (numel > 100000 && op != ReduceOp::Sum)) {
          continue;
        }
        at::Tensor part = at::empty({numel}, type);
        group.reduce_scatter(part, input_of(group.rank(), numel * group.size(), type, 0, op),
                             {.op = op});
        EXPECT_TRUE(part.equal(reduced(group.size(), numel, type, op, numel * group.rank())))
            << c10::toString(type);
      }
    }
  });
}

TEST_P(Operations, AllToAllTransposes) {
  for_all_worlds_and_sizes([](Group& group) {
    const int64_t numel = size_argument();
    for (const at::ScalarType type : types_for(numel)) {
      at::Tensor from_all = at::empty({group.size(), numel}, type);
      group.all_to_all(
          from_all, input_of(group.rank(), numel * group.size(), type).view({group.size(), numel}));
      for (int rank = 0; rank < group.size(); ++rank) {
        EXPECT_TRUE(from_all[rank].equal(input_of(rank, numel, type, numel * group.rank())))
            << c10::toString(type) << " of rank " << rank;
      }
    }
  });
}

TEST_P(Operations, AllToAllWithUnevenParts) {
  for (const int world : kWorlds) {
    run(world, [](Group& group) {
      // Rank r sends r + p rows to rank p (none from rank 0 to itself); rows carry their sender.
      std::vector<int64_t> to;
      std::vector<int64_t> from;
      int64_t num_out = 0;
      int64_t num_in = 0;
      for (int p = 0; p < group.size(); ++p) {
        to.push_back(group.rank() + p);
        from.push_back(p + group.rank());
        num_out += to.back();
        num_in += from.back();
      }
      const at::Tensor input = at::full({num_out, 3}, group.rank(), at::kInt);
      at::Tensor output = at::full({num_in, 3}, -1, at::kInt);
      group.all_to_all(output, input, {.input_splits = to, .output_splits = from});
      int64_t row = 0;
      for (int p = 0; p < group.size(); ++p) {
        const int64_t count = from[static_cast<size_t>(p)];
        EXPECT_TRUE(output.narrow(0, row, count).equal(at::full({count, 3}, p, at::kInt)))
            << "from rank " << p;
        row += count;
      }
    });
  }
}

TEST_P(Operations, MessagesGoRoundTheRing) {
  for (const int world : {2, 3, 4, 7}) {
    for (const int64_t size : kSizes) {
      run(world,
          [](Group& group) {
            const int64_t numel = size_argument();
            const int next = (group.rank() + 1) % group.size();
            const int previous = (group.rank() + group.size() - 1) % group.size();
            for (const at::ScalarType type : types_for(numel)) {
              at::Tensor got = at::empty({numel}, type);
              Work receive = group.recv_async(got, previous, {.tag = 7});
              group.send(input_of(group.rank(), numel, type), next, {.tag = 7});
              receive.wait();
              EXPECT_TRUE(got.equal(input_of(previous, numel, type))) << c10::toString(type);
            }
          },
          {.argument = std::to_string(size)});
    }
  }
}

TEST_P(Operations, TagsKeepMessagesApart) {
  run(2, [](Group& group) {
    if (group.rank() == 0) {
      Work first = group.send_async(at::full({4}, 1.0f), 1, {.tag = 1});
      Work second = group.send_async(at::full({4}, 2.0f), 1, {.tag = 2});
      first.wait();
      second.wait();
    } else {
      at::Tensor two = at::zeros({4});
      at::Tensor one = at::zeros({4});
      group.recv(two, 0, {.tag = 2});
      group.recv(one, 0, {.tag = 1});
      EXPECT_TRUE(two.equal(at::full({4}, 2.0f)));
      EXPECT_TRUE(one.equal(at::full({4}, 1.0f)));
    }
  });
}

TEST_P(Operations, BarrierLetsNobodyThroughEarly) {
  for (const int world : kWorlds) {
    run(world,
        [](Group& group) {
          if (group.size() == 1) {
            group.barrier();
            return;
          }
          Store store = group.store();
          for (int round = 0; round < 3; ++round) {
            const std::string key = fmt::format("{}/barrier/{}", rank_argument(), round);
            store.add(key, 1);
            group.barrier();
            EXPECT_EQ(store.add(key, 0), group.size());
          }
        },
        {.argument = GetParam().name});
  }
}

TEST_P(Operations, ManyInFlightEndInOrderWithTheRightResults) {
  for (const int world : {2, 4}) {
    run(world, [](Group& group) {
      std::vector<at::Tensor> tensors;
      std::vector<Work> works;
      for (int i = 0; i < 20; ++i) {
        tensors.push_back(at::full({1001}, static_cast<float>(group.rank() + i)));
        works.push_back(group.all_reduce_async(tensors.back()));
      }
      const float ranks = static_cast<float>(group.size() * (group.size() - 1)) / 2;
      for (int i = 19; i >= 0; --i) {  // waited for in any order
        works[static_cast<size_t>(i)].wait();
        works[static_cast<size_t>(i)].wait();  // twice is once
        EXPECT_TRUE(works[static_cast<size_t>(i)].done());
        const float expected = ranks + static_cast<float>(group.size() * i);
        EXPECT_TRUE(tensors[static_cast<size_t>(i)].equal(at::full({1001}, expected))) << i;
      }
    });
  }
}

TEST_P(Operations, CallbacksRunOnceTheResultIsThere) {
  run(3, [](Group& group) {
    at::Tensor x = at::ones({8});
    std::promise<bool> promise;
    Work work = group.all_reduce_async(x);
    work.on_done([&](std::exception_ptr error) {
      promise.set_value(!error && x.equal(at::full({8}, 3.0f)));
    });
    EXPECT_TRUE(promise.get_future().get());
    work.wait();
    int num_calls = 0;
    work.on_done([&](const std::exception_ptr&) { ++num_calls; });  // at once: it is done
    EXPECT_EQ(num_calls, 1);
  });
}

TEST_P(Operations, CallbacksMayThrowAndMayCallTheGroup) {
  run(3, [](Group& group) {
    log::set_sink([](log::Level, std::string_view) {});  // what they throw is logged
    at::Tensor x = at::ones({8});
    for (int i = 0; i < 3; ++i) {
      Work work = group.all_reduce_async(x);
      work.on_done([](const std::exception_ptr&) { throw std::runtime_error("a careless user"); });
      work.wait();
    }
    EXPECT_TRUE(x.equal(at::full({8}, 27.0f)));
    std::promise<float> promise;
    Work work = group.all_reduce_async(x);
    work.on_done([&promise, group](const std::exception_ptr& error) mutable {
      if (error) {
        std::rethrow_exception(error);
      }
      at::Tensor y = at::ones({8});
      group.all_reduce(y);  // on every rank the next operation
      Work again = group.all_reduce_async(y);
      again.wait();
      promise.set_value(y[0].item<float>());
    });
    EXPECT_EQ(promise.get_future().get(), 9.0f);
    work.wait();
    log::set_sink({});
  });
}

TEST_P(Operations, ACallbackMayWaitForAnother) {
  run(2, [](Group& group) {
    std::promise<void> second_ran, first_ended;
    at::Tensor a = at::ones({4}), b = at::ones({4});
    Work first = group.all_reduce_async(a);
    Work second = group.all_reduce_async(b);
    first.on_done([&](const std::exception_ptr&) {
      EXPECT_EQ(second_ran.get_future().wait_for(std::chrono::seconds(30)),
                std::future_status::ready);
      first_ended.set_value();
    });
    second.on_done([&](const std::exception_ptr&) { second_ran.set_value(); });
    first_ended.get_future().wait();
    group.barrier();
  });
}

TEST_P(Operations, CallbacksOfMessagesMayCallTheGroupToo) {
  run(2, [](Group& group) {
    at::Tensor x = at::full({5}, static_cast<float>(group.rank()));
    const int peer = 1 - group.rank();
    std::promise<float> promise;
    Work sent = group.send_async(x, peer);
    at::Tensor got = at::zeros({5});
    Work received = group.recv_async(got, peer);
    received.on_done([&promise, &got, group, peer](const std::exception_ptr&) mutable {
      at::Tensor back = at::zeros({5});
      Work echo = group.send_async(got, peer);
      group.recv(back, peer);
      echo.wait();
      promise.set_value(back[0].item<float>());
    });
    received.wait();
    sent.wait();
    EXPECT_EQ(promise.get_future().get(), static_cast<float>(group.rank()));
  });
}

// The sum of 16 bits may leave their range, the average does not.
TEST_P(Operations, AveragesOfLargeHalvesFit) {
  for (const int world : {2, 3}) {
    run(world, [](Group& group) {
      at::Tensor large = at::full({1001}, 40000.0f, at::kHalf);
      group.all_reduce(large, {.op = ReduceOp::Average});
      EXPECT_TRUE(large.equal(at::full({1001}, 40000.0f, at::kHalf))) << large[0].item<float>();
      at::Tensor part = at::zeros({10}, at::kHalf);
      group.reduce_scatter(part, at::full({10 * group.size()}, 40000.0f, at::kHalf),
                           {.op = ReduceOp::Average});
      EXPECT_TRUE(part.equal(at::full({10}, 40000.0f, at::kHalf))) << part[0].item<float>();
      // Partial sums are not rounded: 2048 + 1 is 2048 in float16.
      at::Tensor x = at::full({5}, group.rank() == 0 ? 2048.0f : 1.0f, at::kHalf);
      group.all_reduce(x);
      const auto sum = static_cast<float>(2047 + group.size());
      EXPECT_TRUE(x.equal(at::full({5}, sum, at::kHalf))) << x[0].item<float>();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(On, Operations, ::testing::ValuesIn(testing_support::kEveryWay),
                         testing_support::name_of);

}  // namespace
}  // namespace lockstep
