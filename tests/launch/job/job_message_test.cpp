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
                                    .age = 5ms,
                                    .end = {.status = {.code = 0, .signal = 9},
                                            .stopped = true,
                                            .last_lines = "not \xff UTF-8",
                                            .error = "ValueError",
                                            .log_folder = "/logs/rank_2",
                                            .is_log_whole = true}};
  const launch::MemberMessage back = launch::MemberMessage::from_json(ended.to_json());
  EXPECT_EQ(back.kind, launch::MemberSays::Ended);
  EXPECT_EQ(back.generation, 3);
  EXPECT_EQ(back.end.status.signal, 9);
  EXPECT_EQ(back.age, 5ms);
  EXPECT_TRUE(back.end.stopped);
  EXPECT_EQ(back.end.last_lines, "not \uFFFD UTF-8");
  EXPECT_EQ(back.end.error, "ValueError");
  EXPECT_EQ(back.end.log_folder, "/logs/rank_2");
  EXPECT_TRUE(back.end.is_log_whole);
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

// docs/formats/store.md: started, cannot_start, ended and failed have the same fields.
TEST(JobMessages, HaveTheFieldsOfTheFormat) {
  const launch::MemberMessage ended{.kind = launch::MemberSays::Ended,
                                    .generation = 3,
                                    .rank = 2,
                                    .pid = 7,
                                    .age = std::chrono::nanoseconds(5),
                                    .end = {.status = {.code = 1}, .last_lines = "bye"}};
  EXPECT_EQ(ended.to_json(),
            R"({"age_ns":5,"code":1,"error":"","generation":3,"killed_by":0,"kind":"ended",)"
            R"("log":"","log_is_whole":false,"pid":7,"rank":2,"stopped":false,"text":"bye"})");
  const launch::MemberMessage failed{.kind = launch::MemberSays::Failed,
                                     .generation = 3,
                                     .rank = 2,
                                     .status = {.code = 1},
                                     .text = "no image"};
  EXPECT_EQ(failed.to_json(),
            R"({"age_ns":0,"code":1,"error":"","generation":3,"killed_by":0,"kind":"failed",)"
            R"("log":"","log_is_whole":false,"pid":0,"rank":2,"stopped":false,"text":"no image"})");
  const launch::MemberMessage back = launch::MemberMessage::from_json(failed.to_json());
  EXPECT_EQ(back.status.code, 1);
  EXPECT_EQ(back.text, "no image");
}

}  // namespace
}  // namespace lockstep
