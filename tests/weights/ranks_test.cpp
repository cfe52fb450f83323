// Every mode, on every backend: the same weights on every rank, each byte read as often as the mode
// says, and one rank's failure thrown by all.

#include <atomic>
#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "comm/agree.h"
#include "support/fleet.h"
#include "support/temp_folder.h"
#include "weights/weight_files.h"

namespace lockstep {
namespace {

using test::expect_loaded;
using test::Named;
using test::patterned;
using test::sample_weights;
using test::targets_for;
using test::TempFolder;
using ::testing::HasSubstr;
using testing_support::die_now;
using testing_support::rank_argument;
using testing_support::RunOptions;
using testing_support::Setting;

// Rank 1 leaves its group with the exception, while others may still be told of it.
TEST(ThrowTogether, AllHearTheReasonThoughTheFirstLeavesWithItsGroup) {
  testing_support::run_ranks(3, [](Group& group) {
    for (int round = 0; round < 30; ++round) {
      try {
        Group own = make_group(group.store(), {.name = fmt::format("agree/{}", round),
                                               .rank = group.rank(),
                                               .size = group.size(),
                                               .timeout = std::chrono::seconds(60)});
        comm::throw_together(own, comm::caught([&] {
                               if (own.rank() == 1) {
                                 throw UsageError("the reason");
                               }
                             }));
        ADD_FAILURE() << "nothing was thrown";
      } catch (const UsageError& error) {
        EXPECT_THAT(error.what(), HasSubstr("the reason"));
      }
    }
  });
}

class LoadModes : public ::testing::TestWithParam<Setting> {
 protected:
  template <typename Body>
  void run(int world, Body body, const std::string& argument) {
    RunOptions options{.nodes = std::min(GetParam().nodes, world),
                       .backend = GetParam().backend,
                       .argument = argument};
    testing_support::run_ranks(world, body, options);
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, LoadModes, ::testing::ValuesIn(testing_support::kEveryBackend),
                         [](const auto& setting) { return std::string(setting.param.name); });

constexpr LoadMode kEveryMode[] = {LoadMode::Each, LoadMode::Rank0, LoadMode::Cooperative,
                                   LoadMode::Auto};

int64_t sum_over_ranks(Group& group, uint64_t value) {
  const at::Tensor sum = at::full({1}, static_cast<int64_t>(value), at::kLong);
  group.all_reduce(sum);
  return sum.item<int64_t>();
}

void expect_usable(Group& group) {
  EXPECT_EQ(sum_over_ranks(group, 1), group.size());
}

// The type and text of what the load throws; "none" if nothing.
std::string failure_of(Weights& weights, const std::vector<WeightTarget>& targets, Group& group,
                       LoadOptions options) {
  try {
    load_weights(weights, targets, group, options);
  } catch (const UsageError& error) {
    return std::string("UsageError: ") + error.what();
  } catch (const FormatError& error) {
    return std::string("FormatError: ") + error.what();
  } catch (const IoError& error) {
    return std::string("IoError: ") + error.what();
  }
  return "none";
}

TEST_P(LoadModes, EveryRankHoldsTheWeights) {
  const TempFolder folder;
  test::write_torch_file(folder.at("model.pth"), sample_weights());
  for (const int world : {1, 2, 3, 4}) {
    run(
        world,
        [](Group& group) {
          const Named tensors = sample_weights();
          Weights weights = Weights::open(rank_argument(), group);
          for (const LoadMode mode : kEveryMode) {
            const auto targets =
                targets_for(tensors, group.rank() == 1 ? at::kDouble : at::ScalarType::Undefined);
            const LoadReport report =
                load_weights(weights, targets, group, {.mode = mode, .window_bytes = 1 << 20});
            expect_loaded(targets, tensors);
            EXPECT_TRUE(report.verified);
            EXPECT_EQ(report.reason.empty(), mode != LoadMode::Auto) << report.reason;
            const int64_t read = sum_over_ranks(group, report.bytes_read);
            const int64_t times = report.mode == LoadMode::Each ? group.size() : 1;
            EXPECT_LE(read, times * weights.file_bytes()) << name_of(mode);
            EXPECT_GE(read, times * (weights.file_bytes() - 20'000)) << name_of(mode);
            if (report.mode == LoadMode::Cooperative && group.size() > 1) {
              EXPECT_LE(report.bytes_read * static_cast<uint64_t>(group.size()),
                        static_cast<uint64_t>(read) * 5 / 4)
                  << "an even share";
            }
          }
        },
        folder.at("model.pth"));
  }
}

TEST_P(LoadModes, ADamagedStorageIsAnErrorOnEveryRank) {
  const TempFolder folder;
  const Named tensors{{"good", patterned("good", {70'000})}, {"bad", patterned("bad", {70'000})}};
  test::write_torch_file(folder.at("model.pth"), tensors);
  {
    // "bad" comes first in the file: the dictionary is sorted.
    std::fstream file(folder.at("model.pth"), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(200'000);
    file.put('!');
  }
  for (const int world : {1, 3}) {
    run(
        world,
        [](Group& group) {
          Weights weights = Weights::open(rank_argument(), group);
          for (const LoadMode mode : kEveryMode) {
            std::vector<WeightTarget> targets{{"good", at::zeros({70'000})},
                                              {"bad", at::zeros({70'000})}};
            EXPECT_THAT(failure_of(weights, targets, group, {.mode = mode}),
                        AllOf(HasSubstr("FormatError: "),
                              HasSubstr("model.pth: tensor \"bad\" is "
                                        "damaged: storage \"0\" ("),
                              HasSubstr("at offset ")));
            EXPECT_EQ(failure_of(weights, targets, group, {.mode = mode, .verify = false}), "none");
            targets.pop_back();
            EXPECT_EQ(failure_of(weights, targets, group, {.mode = mode}), "none");
          }
          expect_usable(group);
        },
        folder.at("model.pth"));
  }
}

TEST_P(LoadModes, AWrongTargetOnOneRankIsAnErrorOnAll) {
  const TempFolder folder;
  test::write_torch_file(folder.at("model.pth"), sample_weights());
  run(
      3,
      [](Group& group) {
        Weights weights = Weights::open(rank_argument(), group);
        for (const LoadMode mode : kEveryMode) {
          const int64_t rows = group.rank() == 1 ? 63 : 64;
          EXPECT_THAT(failure_of(weights, {{"layer.0.weight", at::zeros({rows, 96})}}, group,
                                 {.mode = mode}),
                      AllOf(HasSubstr("UsageError: "), HasSubstr("has the shape [63, 96]"),
                            HasSubstr("(seen by rank 1)")));
        }
        expect_usable(group);
      },
      folder.at("model.pth"));
}

TEST_P(LoadModes, RanksMayAskForDifferentTensorsOnlyOfEach) {
  const TempFolder folder;
  test::write_torch_file(folder.at("model.pth"), sample_weights());
  run(
      2,
      [](Group& group) {
        Weights weights = Weights::open(rank_argument(), group);
        const Named tensors = sample_weights();
        const std::string name = group.rank() == 0 ? "layer.0.weight" : "embed.weight";
        const std::vector<WeightTarget> targets{{name, at::zeros_like(tensors.at(name))}};
        EXPECT_THAT(
            failure_of(weights, targets, group, {.mode = LoadMode::Cooperative}),
            HasSubstr("the ranks ask for different tensors, which cooperative cannot serve"));
        const LoadReport report = load_weights(weights, targets, group);
        EXPECT_EQ(report.mode, LoadMode::Each);
        EXPECT_EQ(report.reason, "the ranks ask for different tensors");
        expect_loaded(targets, tensors);
        EXPECT_THAT(failure_of(weights, targets, group,
                               {.mode = group.rank() == 0 ? LoadMode::Each : LoadMode::Auto}),
                    HasSubstr("the ranks gave different options"));
        expect_usable(group);
      },
      folder.at("model.pth"));
}

TEST_P(LoadModes, AFileThatOnlyRank0SeesIsBroadcast) {
  const TempFolder folder;
  std::filesystem::create_directory(folder.at("empty"));
  test::write_torch_file(folder.at("model.pth"), sample_weights());
  run(
      3,
      [](Group& group) {
        const std::filesystem::path before = std::filesystem::current_path();
        std::filesystem::current_path(rank_argument() + (group.rank() == 0 ? "" : "/empty"));
        Weights weights = Weights::open("model.pth", group);
        const auto targets = targets_for(sample_weights());
        const LoadReport report = load_weights(weights, targets, group);
        EXPECT_EQ(report.mode, LoadMode::Rank0);
        expect_loaded(targets, sample_weights());
        EXPECT_THAT(
            failure_of(weights, targets, group, {.mode = LoadMode::Cooperative}),
            AllOf(HasSubstr("IoError: "), HasSubstr("model.pth"), HasSubstr("seen by rank 1")));
        std::filesystem::current_path(before);
        expect_usable(group);
      },
      folder.path());
}

// Returns once the loader has written the first element of `tensor`, or `is_over`.
void await_begin(const at::Tensor& tensor, const std::atomic<bool>& is_over) {
  const auto* first = static_cast<const volatile double*>(tensor.const_data_ptr());
  while (*first == 77 && !is_over) {
    std::this_thread::yield();
  }
}

constexpr int64_t kSlowElements = 8 << 20;  // to be converted, so that there is time to disturb it

// A file that becomes shorter as soon as this process reads from any; "" once it has.
std::string shrink_at_first_read;
std::mutex shrink_mutex;

TEST_P(LoadModes, AFileThatShrinksIsAnErrorOnEveryRank) {
  const TempFolder folder;
  for (const LoadMode mode : {LoadMode::Each, LoadMode::Rank0, LoadMode::Cooperative}) {
    const std::string path = folder.at("model.pth");
    test::write_torch_file(path, {{"w", patterned("w", {kSlowElements}, at::kBFloat16)}});
    run(
        2,
        [](Group& group) {
          std::istringstream words(rank_argument());
          int number = 0;
          std::string file;
          words >> number >> file;
          Weights weights = Weights::open(file, group);
          const at::Tensor target = at::full({kSlowElements}, 77, at::kDouble);
          if (group.rank() == 0) {
            shrink_at_first_read = file;
          }
          const std::string failure =
              failure_of(weights, {{"w", target}}, group,
                         {.mode = static_cast<LoadMode>(number), .window_bytes = 1 << 20});
          EXPECT_EQ(shrink_at_first_read, "") << "nothing was read";
          EXPECT_THAT(failure, AllOf(HasSubstr("IoError: cannot read "), HasSubstr("at offset "),
                                     HasSubstr("reading tensor \"w\""), HasSubstr("seen by rank")));
          EXPECT_THAT(failure_of(weights, {{"w", target}}, group, {}),
                      HasSubstr("had 16"));  // its size, when the headers were read
          expect_usable(group);
        },
        std::to_string(static_cast<int>(mode)) + " " + path);
  }
}

TEST_P(LoadModes, ARankThatDiesIsLostToTheOthers) {
  const TempFolder folder;
  const std::string path = folder.at("model.pth");
  test::write_torch_file(path, {{"w", patterned("w", {kSlowElements}, at::kBFloat16)}});
  for (const LoadMode mode : {LoadMode::Rank0, LoadMode::Cooperative}) {
    RunOptions options{.nodes = GetParam().nodes,
                       .backend = GetParam().backend,
                       .argument = std::to_string(static_cast<int>(mode)) + " " + path,
                       .dies = {1}};
    testing_support::run_ranks(
        3,
        [](Group& group) {
          std::istringstream words(rank_argument());
          int number = 0;
          std::string file;
          words >> number >> file;
          Weights weights = Weights::open(file, group);
          const at::Tensor target = at::full({kSlowElements}, 77, at::kDouble);
          std::atomic<bool> is_over = false;
          if (group.rank() == 1) {
            std::thread([&] {
              await_begin(target, is_over);
              die_now();
            }).detach();
          }
          const std::vector<WeightTarget> targets{{"w", target}};
          EXPECT_THROW(
              {
                load_weights(weights, targets, group,
                             {.mode = static_cast<LoadMode>(number), .window_bytes = 1 << 20});
                group.barrier();  // for a rank that had everything before the death
                group.barrier();
              },
              PeerLostError);
        },
        options);
  }
}

}  // namespace
}  // namespace lockstep

// In libc's place.
extern "C" ssize_t pread(int fd, void* bytes, size_t size, off_t offset) {
  {
    const std::lock_guard lock(lockstep::shrink_mutex);
    if (!lockstep::shrink_at_first_read.empty()) {
      EXPECT_EQ(::truncate(lockstep::shrink_at_first_read.c_str(), 100'000), 0);
      lockstep::shrink_at_first_read.clear();
    }
  }
  return ::syscall(SYS_pread64, fd, bytes, size, offset);
}
