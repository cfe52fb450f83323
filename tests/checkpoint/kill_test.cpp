// A rank, or all of them, killed at every moment of a save: what was there stays, what verifies is
// right, the next save works and nothing is left.

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "checkpoint/checkpoint_state.h"
#include "checkpoint_files/points.h"
#include "support/fleet.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using test::load_newest;
using test::names_in;
using test::sample_state;
using test::save;
using test::TempFolder;
using ::testing::Contains;
using testing_support::die_now;
using testing_support::rank_argument;

checkpoint_files::SavePoint fatal_point;

void die_at(checkpoint_files::SavePoint point) {
  if (point == fatal_point) {
    die_now();
  }
}

struct KillCase {
  checkpoint_files::SavePoint point;
  std::vector<int> dies;
};

// Saves step 1, then is killed at the point of step 2.
void save_and_die(Group& group) {
  std::istringstream words(rank_argument());
  int point = 0;
  std::string dies;
  std::string folder;
  words >> point >> dies >> folder;
  CheckpointWriter writer(folder, group, {.keep_last = 1});
  EXPECT_TRUE(save(writer, 1).committed);
  group.barrier();
  if (dies.find(std::to_string(group.rank())) != std::string::npos) {
    fatal_point = static_cast<checkpoint_files::SavePoint>(point);
    checkpoint_files::save_observer = die_at;
  }
  writer.begin({.step = 2, .values = {{"counter", "2"}}}, sample_state(2));
  writer.wait_captured();
  writer.wait();
  const auto results = writer.take_results();
  ASSERT_EQ(results.size(), 1u);
  // A rank that dies once all have agreed is not missed in this save.
  EXPECT_EQ(results[0].committed, results[0].error.empty());
}

class Killed : public ::testing::TestWithParam<KillCase> {};

INSTANTIATE_TEST_SUITE_P(
    Points, Killed,
    ::testing::Values(KillCase{checkpoint_files::SavePoint::Prepared, {0}},
                      KillCase{checkpoint_files::SavePoint::HalfWritten, {0}},
                      KillCase{checkpoint_files::SavePoint::ShardsWritten, {0}},
                      KillCase{checkpoint_files::SavePoint::ManifestWritten, {0}},
                      KillCase{checkpoint_files::SavePoint::Renamed, {0}},
                      KillCase{checkpoint_files::SavePoint::Committed, {0}},
                      KillCase{checkpoint_files::SavePoint::HalfWritten, {1}},
                      KillCase{checkpoint_files::SavePoint::HalfWritten, {0, 1}}));

TEST_P(Killed, LeavesNothingThatLies) {
  const TempFolder folder;
  const KillCase& param = GetParam();
  std::string dies;
  for (const int rank : param.dies) {
    dies += std::to_string(rank);
  }
  const std::string location = folder.at("checkpoints");
  testing_support::run_ranks(
      2, save_and_die,
      {.argument = fmt::format("{} {} {}", static_cast<int>(param.point), dies, location),
       .dies = param.dies});
  for (const CheckpointCheck& check : verify_checkpoints(location)) {
    EXPECT_EQ(check.problem, "");
  }
  Group alone = make_single_group();
  const int64_t expected = param.point >= checkpoint_files::SavePoint::Renamed ? 2 : 1;
  EXPECT_EQ(load_newest(location, alone), expected);
  EXPECT_THAT(names_in(location), Contains("latest"));
  CheckpointWriter writer(location, alone, {.keep_last = 1});
  EXPECT_TRUE(save(writer, 3).committed);
  EXPECT_EQ(load_newest(location, alone), 3);
  EXPECT_THAT(names_in(location), ::testing::ElementsAre("latest", "step-00000003"));
}

}  // namespace
}  // namespace lockstep
