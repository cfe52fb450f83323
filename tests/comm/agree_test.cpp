#include "comm/agree.h"

#include <gtest/gtest.h>

#include "support/fleet.h"

namespace lockstep {
namespace {

using testing_support::run_ranks;
using Texts = std::vector<std::string>;

TEST(Agree, EveryRankLearnsTheNumbersAndTextsOfAll) {
  for (const int world : {1, 2, 3}) {
    run_ranks(world, [](Group& group) {
      std::vector<int64_t> numbers;
      Texts texts;
      for (int rank = 0; rank < group.size(); ++rank) {
        numbers.push_back(rank - 1);
        texts.push_back(std::string(static_cast<size_t>(rank), 'x'));
      }
      EXPECT_EQ(comm::gather_numbers(group, group.rank() - 1), numbers);
      EXPECT_EQ(comm::gather_texts(group, texts[static_cast<size_t>(group.rank())]), texts);
      EXPECT_EQ(comm::gather_texts(group, ""), Texts(texts.size()));
      const int last = group.size() - 1;
      const std::string own = "of rank " + std::to_string(group.rank());
      EXPECT_EQ(comm::broadcast_text(group, own, last), "of rank " + std::to_string(last));
      EXPECT_EQ(comm::broadcast_text(group, ""), "");
    });
  }
}

TEST(Agree, AllThrowWhatTheLowestRankThrew) {
  run_ranks(3, [](Group& group) {
    comm::throw_together(group, nullptr);
    const auto error = comm::caught([&] {
      if (group.rank() != 0) {
        throw FormatError("torn at {}", group.rank());
      }
    });
    EXPECT_EQ(error == nullptr, group.rank() == 0);
    try {
      comm::throw_together(group, error);
      ADD_FAILURE() << "rank " << group.rank() << " threw nothing";
    } catch (const FormatError& together) {
      EXPECT_STREQ(together.what(), "torn at 1 (seen by rank 1)");
    }
  });
}

TEST(Agree, FailuresAreTexts) {
  EXPECT_EQ(comm::failure_of([] {}), "");
  EXPECT_EQ(comm::failure_of([] { throw UsageError("no"); }), "no");
  EXPECT_THROW(comm::failure_of([] { throw TimeoutError("late"); }), CommError);
  EXPECT_EQ(comm::first_text({"", "b", "c"}), "b");
  EXPECT_EQ(comm::first_text({}), "");
}

}  // namespace
}  // namespace lockstep
