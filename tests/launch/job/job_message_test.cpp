#include "launch/job/job_message.h"

#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

using namespace std::chrono_literals;

TEST(JobMessages, SurviveTheWire) {
  const launch::MemberMessage ended{.kind = launch::MemberSays::Ended,
                                    .generation = 3,
                                    .rank = 2,
                                    .pid = 7,
                                    .status = {.code = 0, .signal = 9},
                                    .age = 5ms,
                                    .stopped = true,
                                    .text = "not \xff UTF-8"};
  const launch::MemberMessage back = launch::MemberMessage::from_json(ended.to_json());
  EXPECT_EQ(back.kind, launch::MemberSays::Ended);
  EXPECT_EQ(back.generation, 3);
  EXPECT_EQ(back.status.signal, 9);
  EXPECT_EQ(back.age, 5ms);
  EXPECT_TRUE(back.stopped);
  const launch::HeadMessage start{.kind = launch::HeadSays::Start,
                                  .generation = 1,
                                  .assignment = {.generation = 1, .first_rank = 4, .store = "a:1"}};
  EXPECT_EQ(launch::HeadMessage::from_json(start.to_json()).assignment.first_rank, 4);
  for (const char* bad :
       {"", "{}", "[1]", R"({"kind":"dance","generation":0})", R"({"kind":"join","generation":0})",
        R"({"kind":"ended","generation":0,"rank":"two"})"}) {
    EXPECT_THROW(launch::MemberMessage::from_json(bad), FormatError) << bad;
  }
}

}  // namespace
}  // namespace lockstep
