// Ranks call the same operations with the same numbers, on tensors of one kind of device.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "comm/staged_group.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_support::make_staged_group;
using testing_support::rank_argument;
using testing_support::RunOptions;

class SameCall : public testing_support::EveryBackend {
 protected:
  // Elsewhere calls are always compared.
  RunOptions checked() const {
    RunOptions options;
    if (is_gloo()) {
      options.env = {"LOCKSTEP_CHECK_COLLECTIVES=1"};
    }
    return options;
  }
};

void call(Group& group, const std::string& operation, int64_t numel) {
  const int size = group.size();
  const at::Tensor x = at::arange(static_cast<double>(numel), at::kFloat) + group.rank();
  const at::Tensor all = at::empty({size, numel});
  if (operation == "all_reduce") group.all_reduce(x);
  if (operation == "broadcast from 0") group.broadcast(x, {.root = 0});
  if (operation == "broadcast from 1") group.broadcast(x, {.root = 1});
  if (operation == "all_gather") group.all_gather(all, x);
  if (operation == "reduce_scatter") group.reduce_scatter(x, at::ones({size, numel}));
  if (operation == "all_to_all") group.all_to_all(all, at::ones({size, numel}));
}

// One rank's tensor is on a device, the others' are on the CPU, or the other way round. `is_first`:
// there has been no call yet, so that the ranks of the device have no memory to stage in.
void expect_found_out(Group& group, const std::string& operation, int64_t numel, bool is_first) {
  static int num_groups = 0;
  for (const int odd : {0, 2}) {
    const bool is_odd = group.rank() == odd;
    const bool is_staged = is_odd == (num_groups % 2 == 0);
    const auto everywhere = std::make_shared<bool>(!is_first);
    const std::string name = fmt::format("place/{}", num_groups++);
    SCOPED_TRACE(fmt::format("{} of {}, odd rank {}, first {}", operation, numel, odd, is_first));
    try {
      Group mixed = make_staged_group(
          group, {.name = name, .is_staged = [everywhere, is_staged](const at::Tensor& tensor) {
                    return *everywhere || (is_staged && tensor.numel() > 1);
                  }});
      if (!is_first) {
        call(mixed, "all_reduce", 7);
        mixed.barrier();
        *everywhere = false;
      }
      call(mixed, operation, numel);
      mixed.barrier();  // the root of a broadcast may have been through before it was found out
      ADD_FAILURE() << "nobody noticed";
    } catch (const DesyncError& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr(" elements) on cuda"), HasSubstr(" elements) on the CPU"),
                        HasSubstr("use .to(device)"), ::testing::Not(HasSubstr("allocate"))));
      EXPECT_THAT(error.what(), HasSubstr(operation.substr(0, operation.find(' ')) + " ("));
    }
  }
}

TEST_P(SameCall, TensorsOfAllRanksAreOnADeviceOrNone) {
  run(
      3,
      [](Group& group) {
        for (const char* operation : {"all_reduce", "broadcast from 0", "broadcast from 1",
                                      "all_gather", "reduce_scatter"}) {
          for (const int64_t numel : {5, 120'001}) {  // one piece, and five with a shorter one
            for (const bool is_first : {true, false}) {
              expect_found_out(group, operation, numel, is_first);
            }
          }
        }
      },
      checked());
}

TEST_P(SameCall, SoAreThoseOfAllToAll) {
  run(
      2,
      [](Group& group) {
        Group mixed = make_staged_group(
            group, {.name = "mixed",
                    .is_staged = [rank = group.rank()](const at::Tensor&) { return rank == 1; }});
        try {
          call(mixed, "all_to_all", 10);
          ADD_FAILURE() << "nobody noticed";
        } catch (const DesyncError& error) {
          EXPECT_THAT(error.what(), AllOf(HasSubstr("all_to_all (Float) on the CPU"),
                                          HasSubstr("all_to_all (Float) on cuda")));
        }
      },
      checked());
}

// A message has no order with others, and may come from anywhere.
TEST_P(SameCall, MessagesGoFromTheCpuToADevice) {
  run(2, [](Group& group) {
    Group mixed = make_staged_group(
        group, {.name = "messages",
                .is_staged = [rank = group.rank()](const at::Tensor&) { return rank == 1; }});
    const at::Tensor x = at::full({30'000}, static_cast<float>(group.rank()));
    if (group.rank() == 0) {
      mixed.send(x, 1);
      mixed.recv(x, 1);
      EXPECT_TRUE(x.equal(at::full({30'000}, 7.0f)));
    } else {
      mixed.recv(x, 0);
      EXPECT_TRUE(x.equal(at::zeros({30'000})));
      mixed.send(at::full({30'000}, 7.0f), 0);
    }
  });
}

// The pieces of a call have its number, and a rank may be at the second before another is at the
// first.
TEST_P(SameCall, IsComparedOncePerCallOfManyPieces) {
  run(
      3,
      [](Group& group) {
        Store store = group.store();
        const std::string key = fmt::format("same_call/{}/first", testing_support::case_name());
        testing_support::LateHooks hooks;
        if (group.rank() == 1) {
          hooks.before_copy = [store, key]() mutable { store.set(key, "here"); };
        }
        Group staged =
            make_staged_group(group, {.name = "pieces", .timeout = 10s, .hooks = std::move(hooks)});
        if (group.rank() == 2 && group.backend_name() == "gloo") {
          store.get(key);  // rank 1 has the first piece
          for (int i = 0; i < 200; ++i) {
            store.try_get(key);
          }
        }
        const at::Tensor x = at::full({100'000}, static_cast<float>(group.rank() + 5));
        staged.broadcast(x, {.root = 0});
        EXPECT_TRUE(x.equal(at::full({100'000}, 5.0f)));
        staged.barrier();
      },
      checked());
}

// What is compared is in the store, and taken away by the last rank to see it.
TEST_P(SameCall, IsComparedInWhateverOrderRanksComeToIt) {
  run(
      3,
      [](Group& group) {
        Store store = group.store();
        const std::string key = fmt::format("same_call/{}/started", testing_support::case_name());
        GroupOptions options{.name = testing_support::case_name() + "/many",
                             .rank = group.rank(),
                             .size = group.size(),
                             .timeout = 10s,
                             .backend = testing_support::choice_of(group)};
        Group fresh = make_group(store, options);
        if (group.rank() == 1) {
          store.get(key);
        }
        std::vector<at::Tensor> tensors;
        std::vector<Work> works;
        for (int i = 0; i < 12; ++i) {
          tensors.push_back(at::full({3}, static_cast<float>(group.rank() + i)));
          works.push_back(fresh.all_reduce_async(tensors.back()));
        }
        if (group.rank() == 0) {
          store.set(key, "all 12");
        }
        for (size_t i = 0; i < works.size(); ++i) {
          works[i].wait();
          EXPECT_TRUE(tensors[i].equal(at::full({3}, 3.0f + 3.0f * static_cast<float>(i))));
        }
      },
      checked());
}

// Its call was refused before any other rank could hear of it: the next one has the same number.
TEST_P(SameCall, ARefusedRebindDoesNotCount) {
  run(2, [](Group& group) {
    const at::Tensor memory = group.allocate(4096);
    if (group.rank() == 1 && group.backend_name() != "gloo") {
      EXPECT_THROW(group.rebind(at::ones({7})), UsageError);
    }
    group.rebind(memory);
    at::Tensor x = at::full({3}, static_cast<float>(group.rank() + 1));
    group.all_reduce(x);
    EXPECT_TRUE(x.equal(at::full({3}, 3.0f)));
  });
}

INSTANTIATE_TEST_SUITE_P(On, SameCall, ::testing::ValuesIn(testing_support::kEveryBackend),
                         testing_support::name_of);

}  // namespace
}  // namespace lockstep
