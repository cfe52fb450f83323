// What CheckpointWriter promises beside the bits: capture, retention, errors on all ranks.

#include <atomic>
#include <filesystem>
#include <fstream>
#include <pthread.h>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "base/atomic_file.h"
#include "base/unique_fd.h"
#include "checkpoint/checkpoint_state.h"
#include "checkpoint_files/owner.h"
#include "checkpoint_files/points.h"
#include "support/fleet.h"
#include "support/refusal.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using test::expect_same_bits;
using test::load_newest;
using test::names_in;
using test::refusal;
using test::sample_state;
using test::save;
using test::targets_like;
using test::TempFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_support::rank_argument;
using testing_support::run_ranks;

std::atomic<bool> may_go_on = false;

void hold_back(checkpoint_files::SavePoint point) {
  while (point == checkpoint_files::SavePoint::Prepared && !may_go_on) {
    std::this_thread::yield();
  }
}

void overwrite(const std::vector<NamedTensor>& state) {
  for (const NamedTensor& named : state) {
    named.tensor.zero_();
  }
}

// While it lives this process gets no thread: the stack of another one does not fit.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    ::getrlimit(RLIMIT_AS, &former_limit_);
    ::pthread_getattr_default_np(&former_);
    pthread_attr_t huge;
    ::pthread_getattr_default_np(&huge);
    ::pthread_attr_setstacksize(&huge, size_t{8} << 30);
    ::pthread_setattr_default_np(&huge);
    ::pthread_attr_destroy(&huge);
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t used = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
    const rlimit limit{used + (rlim_t{1} << 30), former_limit_.rlim_max};
    ::setrlimit(RLIMIT_AS, &limit);
  }
  ~NoMoreThreads() {
    ::setrlimit(RLIMIT_AS, &former_limit_);
    ::pthread_setattr_default_np(&former_);
    ::pthread_attr_destroy(&former_);
  }
  NoMoreThreads(const NoMoreThreads&) = delete;
  NoMoreThreads& operator=(const NoMoreThreads&) = delete;

 private:
  rlimit former_limit_{};
  pthread_attr_t former_{};
};

TEST(Capture, TensorsMayChangeBeforeAnyByteIsWritten) {
  const TempFolder folder;
  run_ranks(2,
            [](Group& group) {
              CheckpointWriter writer(rank_argument(), group);
              checkpoint_files::save_observer = hold_back;
              for (int64_t step = 1; step <= 2; ++step) {  // into fresh memory, then into used
                may_go_on = false;
                const auto state = sample_state(static_cast<uint64_t>(step));
                writer.begin({.step = step, .values = {{"counter", std::to_string(step)}}}, state);
                EXPECT_TRUE(writer.is_busy());
                writer.wait_captured();
                overwrite(state);
                may_go_on = true;
                writer.wait();
                EXPECT_FALSE(writer.is_busy());
                EXPECT_EQ(load_newest(rank_argument(), group), step);
              }
              checkpoint_files::save_observer = nullptr;
            },
            {.argument = folder.path()});
}

TEST(Capture, SmallTensorsMayChangeAtOnceAndLargeOnesAfterwards) {
  const TempFolder folder;
  run_ranks(3,
            [](Group& group) {
              CheckpointWriter writer(rank_argument(), group, {.keep_last = 1});
              for (int64_t step = 1; step <= 5; ++step) {
                const auto state = sample_state(static_cast<uint64_t>(step));
                writer.begin({.step = step, .values = {{"counter", std::to_string(step)}}}, state);
                for (const NamedTensor& named : state) {
                  if (named.tensor.nbytes() < 64 << 10) {
                    named.tensor.zero_();
                  }
                }
                writer.wait_captured();
                overwrite(state);
                writer.wait();
                EXPECT_EQ(load_newest(rank_argument(), group), step);
              }
              EXPECT_EQ(writer.take_results().size(), 5u);
              writer.wait_captured();  // nothing is under way
              writer.wait();
            },
            {.argument = folder.path()});
}

TEST(Retention, KeepsTheLastAndTheBest) {
  const TempFolder folder;
  run_ranks(2,
            [](Group& group) {
              CheckpointWriter writer(rank_argument(), group, {.keep_last = 2});
              save(writer, 1, 0.9);
              save(writer, 2, 0.1);
              save(writer, 3);
              save(writer, 4, std::nan(""));
            },
            {.argument = folder.path()});
  EXPECT_THAT(names_in(folder.path()),
              ElementsAre("best", "latest", "step-00000001", "step-00000003", "step-00000004"));
  EXPECT_EQ(base::read_file(folder.at("best")), "step-00000001\n");
  EXPECT_EQ(base::read_file(folder.at("latest")), "step-00000004\n");
  Group alone = make_single_group();
  EXPECT_EQ(load_newest(folder.at("best"), alone), 1);
  // Another run goes on behind what it finds, also from an older step.
  CheckpointWriter writer(folder.path(), alone, {.keep_last = 2});
  EXPECT_TRUE(save(writer, 2, 0.95).committed);
  EXPECT_EQ(load_newest(folder.path(), alone), 2);
  EXPECT_THAT(names_in(folder.path()),
              ElementsAre("best", "latest", "step-00000002", "step-00000004"));
}

TEST(CheckpointWriter, AStepThatIsThereIsReplaced) {
  const TempFolder folder;
  Group alone = make_single_group();
  CheckpointWriter writer(folder.at("a/b"), alone);
  EXPECT_TRUE(save(writer, 7).committed);
  const auto state = sample_state(99);
  writer.begin({.step = 7}, state);
  writer.wait();
  const auto targets = targets_like(state);
  find_checkpoint(folder.at("a/b"), alone)->load(targets, alone);
  expect_same_bits(targets, state);
  EXPECT_THAT(names_in(folder.at("a/b")), ElementsAre("latest", "step-00000007"));
}

TEST(CheckpointWriter, WithoutAThreadTrainingWaitsForTheSave) {
  const TempFolder folder;
  Group alone = make_single_group();
  CheckpointWriter writer(folder.at("checkpoints"), alone);
  {
    const NoMoreThreads limit;
    EXPECT_THROW(std::thread([] {}).join(), std::system_error);
    EXPECT_TRUE(save(writer, 3).committed);
  }
  EXPECT_EQ(load_newest(folder.at("checkpoints"), alone), 3);
  EXPECT_TRUE(save(writer, 4).committed);
}

TEST(CheckpointWriter, WhatRanksDoDifferentlyIsAnErrorOnAll) {
  const TempFolder folder;
  run_ranks(
      3,
      [](Group& group) {
        const bool is_odd = group.rank() == 1;
        CheckpointWriter writer(rank_argument(), group);
        const auto begins = [&](int64_t step, const char* name, const at::Tensor& tensor) {
          return refusal([&] { writer.begin({.step = step}, {{name, tensor}}); });
        };
        const auto differs = HasSubstr("rank 1 gives another step or other names, types or shapes");
        EXPECT_THAT(begins(1, "w", at::zeros({is_odd ? 4 : 3})), differs);
        EXPECT_THAT(begins(1, "w", at::zeros({3}, is_odd ? at::kInt : at::kFloat)), differs);
        EXPECT_THAT(begins(1, is_odd ? "v" : "w", at::zeros({3})), differs);
        EXPECT_THAT(begins(is_odd ? 2 : 1, "w", at::zeros({3})), differs);
        EXPECT_THAT(begins(1, is_odd ? "" : "w", at::zeros({3})),
                    HasSubstr("the name \"\" is empty or stands there twice (seen by rank 1)"));
        EXPECT_TRUE(save(writer, 3).committed);
      },
      {.argument = folder.path()});
}

TEST(CheckpointWriter, WhatCannotBeSavedIsRefused) {
  const TempFolder folder;
  Group alone = make_single_group();
  CheckpointWriter writer(folder.path(), alone);
  const at::Tensor tensor = at::zeros({2});
  const auto begins = [&](CheckpointInfo info, std::vector<NamedTensor> tensors) {
    return refusal([&] { writer.begin(std::move(info), std::move(tensors)); });
  };
  EXPECT_THAT(begins({}, {{"w", tensor}, {"w", tensor}}), HasSubstr("stands there twice"));
  EXPECT_THAT(begins({}, {{"w", at::Tensor()}}),
              HasSubstr("not a dense tensor of the CPU or a GPU"));
  EXPECT_THAT(begins({}, {{"w", at::eye(2).to_sparse()}}), HasSubstr("not a dense tensor"));
  EXPECT_THAT(begins({}, {{"\xff", tensor}}), HasSubstr("UTF-8"));
  EXPECT_THAT(begins({.step = -1}, {{"w", tensor}}), HasSubstr("step -1 is negative"));
  EXPECT_THAT(begins({.values = {{"rng", "\xff"}}}, {{"w", tensor}}), HasSubstr("not UTF-8"));
  EXPECT_THAT(refusal([&] { CheckpointWriter(folder.path(), alone, {.keep_last = 0}); }),
              HasSubstr("keep_last is 0"));
  EXPECT_THAT(refusal([&] { CheckpointWriter("ftp://x/y", alone); }), HasSubstr("ftp"));
  EXPECT_TRUE(save(writer, 1).committed);
  EXPECT_THAT(refusal([&] { CheckpointWriter(folder.at("step-00000001"), alone); }),
              HasSubstr("is a checkpoint; give the folder that it is in"));
}

TEST(CheckpointWriter, APlaceThatIsLostFailsTheSaveAlone) {
  const TempFolder folder;
  Group alone = make_single_group();
  CheckpointWriter writer(folder.at("checkpoints"), alone);
  std::filesystem::remove_all(folder.at("checkpoints"));
  folder.file("checkpoints", "in the way");
  const SaveResult result = save(writer, 1);
  EXPECT_FALSE(result.committed);
  EXPECT_THAT(result.error, HasSubstr("cannot make the folder"));
  std::filesystem::remove(folder.at("checkpoints"));
  EXPECT_TRUE(save(writer, 2).committed);
}

TEST(CheckpointWriter, APlaceThatAnotherRunHasTakenIsLeftAlone) {
  const TempFolder folder;
  Group alone = make_single_group();
  CheckpointWriter writer(folder.at("checkpoints"), alone);
  EXPECT_TRUE(save(writer, 1).committed);
  const std::string record = folder.at(std::string("checkpoints/") + checkpoint_files::kOwnerFile);
  auto owner = nlohmann::json::parse(base::read_file(record));
  owner["token"] = "of another run";
  owner["host"] = "node7";
  base::write_file_atomically(record, owner.dump());
  const SaveResult result = save(writer, 2);
  EXPECT_FALSE(result.committed);
  EXPECT_THAT(result.error, AllOf(HasSubstr("taken by another run"), HasSubstr("node7")));
  EXPECT_THAT(names_in(folder.at("checkpoints")),
              ::testing::Not(::testing::Contains("step-00000002")));
  std::filesystem::remove(record);
  EXPECT_TRUE(save(writer, 3).committed) << "it was given up again";
}

}  // namespace
}  // namespace lockstep
