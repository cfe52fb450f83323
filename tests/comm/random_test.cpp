// Random schedules of operations through the Group, several in flight, each rank delayed at random
// places: every rank makes the same schedule from a seed and checks every result.

#include <deque>
#include <random>
#include <thread>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "comm/every_backend.h"
#include "comm/oracle.h"

namespace lockstep {
namespace {

using testing_support::input_of;
using testing_support::rank_argument;
using testing_support::reduced;

constexpr size_t kMaxInFlight = 4;
constexpr int64_t kBufferBytes = 5 << 19;

struct Sum {
  at::ScalarType type;
  ReduceOp op;
};
constexpr Sum kSums[] = {{at::kFloat, ReduceOp::Sum},    {at::kFloat, ReduceOp::Average},
                         {at::kBFloat16, ReduceOp::Sum}, {at::kDouble, ReduceOp::Product},
                         {at::kLong, ReduceOp::Max},     {at::kByte, ReduceOp::BitOr}};

class Schedule {
 public:
  Schedule(Group& group, uint64_t seed)
      : group_(group),
        plan_(seed),
        own_(static_cast<uint32_t>(seed * 100 + static_cast<uint64_t>(group.rank()))) {
    for (size_t i = 0; i < kMaxInFlight; ++i) {
      free_buffers_.push_back(group.allocate(kBufferBytes));
    }
  }

  void run(int num_operations) {
    for (int i = 0; i < num_operations; ++i) {
      delay();
      begin();
      while (in_flight_.size() == kMaxInFlight || (!in_flight_.empty() && pick(3) == 0)) {
        delay();
        end(pick(in_flight_.size()));
      }
    }
    while (!in_flight_.empty()) {
      end(0);
    }
  }

 private:
  struct Flight {
    Work work;
    at::Tensor result;
    at::Tensor expected;
    std::string what;
    at::Tensor buffer;  // that it occupies, if it works on one
  };

  uint64_t pick(uint64_t below) { return plan_() % below; }  // the same on every rank

  // Mostly nothing, sometimes the core goes to others, sometimes to nobody.
  void delay() {
    switch (own_() % 8) {
      case 0:
        std::this_thread::yield();
        break;
      case 1:
        std::this_thread::sleep_for(std::chrono::microseconds(own_() % 1000));
        break;
      default:
        break;
    }
  }

  // Small ones often, to synchronise often; large ones for every algorithm.
  int64_t random_bytes(int64_t most) {
    switch (pick(8)) {
      case 0:
        return 0;
      case 1:
      case 2:
      case 3:
        return static_cast<int64_t>(pick(300));
      case 4:
      case 5:
        return static_cast<int64_t>(pick(100 << 10));
      default:
        return static_cast<int64_t>(pick(static_cast<uint64_t>(most)));
    }
  }

  // A copy of `values`, in ordinary memory or in a buffer.
  at::Tensor placed(const at::Tensor& values, Flight& flight) {
    if (pick(2) == 0 || values.numel() == 0) {
      return values.clone();
    }
    flight.buffer = free_buffers_.front();
    free_buffers_.pop_front();
    at::Tensor part = flight.buffer.narrow(0, 0, static_cast<int64_t>(values.nbytes()));
    part = part.view(values.scalar_type()).view(values.sizes());
    part.copy_(values);
    return part;
  }

  void begin() {
    const Sum& sum = kSums[pick(std::size(kSums))];
    const auto kind = pick(7);
    const bool is_per_rank = kind > 2;  // the larger side has a part for each rank
    const int64_t bytes = random_bytes(is_per_rank ? kBufferBytes / group_.size() : kBufferBytes);
    const int64_t numel = bytes / static_cast<int64_t>(c10::elementSize(sum.type));
    Flight flight;
    flight.what = fmt::format("kind {}, {} of {}, reduction {}", kind, numel,
                              c10::toString(sum.type), static_cast<int>(sum.op));
    const int rank = group_.rank();
    const int size = group_.size();
    switch (kind) {
      case 0:
      case 1: {
        flight.result = placed(input_of(rank, numel, sum.type, 0, sum.op), flight);
        flight.expected = reduced(size, numel, sum.type, sum.op);
        flight.work = group_.all_reduce_async(flight.result, {.op = sum.op});
        break;
      }
      case 2: {
        const int root = static_cast<int>(pick(static_cast<uint64_t>(size)));
        flight.result = placed(input_of(rank, numel, sum.type), flight);
        flight.expected = input_of(root, numel, sum.type);
        flight.work = group_.broadcast_async(flight.result, {.root = root});
        break;
      }
      case 3: {
        flight.result = at::empty({size, numel}, sum.type);
        std::vector<at::Tensor> all;
        for (int from = 0; from < size; ++from) {
          all.push_back(input_of(from, numel, sum.type));
        }
        flight.expected = at::stack(all);
        flight.work =
            group_.all_gather_async(flight.result, placed(all[static_cast<size_t>(rank)], flight));
        break;
      }
      case 4: {
        flight.result = at::empty({numel}, sum.type);
        flight.expected = reduced(size, numel, sum.type, sum.op, numel * rank);
        flight.work = group_.reduce_scatter_async(
            flight.result, placed(input_of(rank, numel * size, sum.type, 0, sum.op), flight),
            {.op = sum.op});
        break;
      }
      case 5: {
        flight.result = at::empty({size, numel}, sum.type);
        std::vector<at::Tensor> all;
        for (int from = 0; from < size; ++from) {
          all.push_back(input_of(from, numel, sum.type, numel * rank));
        }
        flight.expected = at::stack(all);
        const at::Tensor input = input_of(rank, numel * size, sum.type).view({size, numel});
        flight.work = group_.all_to_all_async(flight.result, placed(input, flight));
        break;
      }
      default:
        flight.result = flight.expected = at::empty({0});
        flight.work = group_.barrier_async();
    }
    in_flight_.push_back(std::move(flight));
  }

  void end(size_t which) {
    Flight flight = std::move(in_flight_[which]);
    in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(which));
    flight.work.wait();
    EXPECT_TRUE(flight.result.equal(flight.expected)) << flight.what;
    if (flight.buffer.defined()) {
      free_buffers_.push_back(flight.buffer);
    }
  }

  Group& group_;
  std::mt19937_64 plan_;
  std::minstd_rand own_;
  std::deque<at::Tensor> free_buffers_;
  std::deque<Flight> in_flight_;
};

class RandomSchedules : public testing_support::EveryBackend {};

TEST_P(RandomSchedules, GiveTheRightResults) {
  const int num_seeds = testing_support::is_long() ? 50 : 2;
  for (const int world : {2, 3, 4, 7}) {
    for (int seed = 1; seed <= num_seeds; ++seed) {
      SCOPED_TRACE(::testing::Message() << "world " << world << ", seed " << seed);
      run(world, [](Group& group) { Schedule(group, std::stoull(rank_argument())).run(60); },
          {.argument = std::to_string(seed)});
      if (HasFailure()) {
        return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(On, RandomSchedules, ::testing::ValuesIn(testing_support::kEveryWay),
                         testing_support::name_of);

}  // namespace
}  // namespace lockstep
