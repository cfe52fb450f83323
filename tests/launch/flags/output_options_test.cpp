#include "launch/flags/output_options.h"

#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

TEST(StreamChoice, OneNumberOrByLocalRank) {
  const launch::StreamChoice all = launch::StreamChoice::parse("2", "-r");
  EXPECT_EQ(all.of(0), 2u);
  EXPECT_EQ(all.of(700), 2u);
  const launch::StreamChoice some = launch::StreamChoice::parse("0:3,10:1,11:2", "-r");
  EXPECT_EQ(some.of(0), 3u);
  EXPECT_EQ(some.of(1), 0u);
  EXPECT_EQ(some.of(10), 1u);
  EXPECT_EQ(some.of(11), 2u);
  EXPECT_FALSE(launch::StreamChoice::parse("0", "-r").any());
  EXPECT_TRUE(some.any());
  for (const char* text :
       {"", "4", "-1", "0:4", "0:", ":1", "0:1,", "0:1,1", "0:1,0:2", "0:1;1:2", "5000:1"}) {
    EXPECT_THROW(launch::StreamChoice::parse(text, "-r"), UsageError) << text;
  }
}

TEST(StreamRoute, FileConsoleOrBoth) {
  const launch::StreamChoice out{.all = 1};
  EXPECT_TRUE(launch::stream_route({}, 0, 0).to_console);
  EXPECT_FALSE(launch::stream_route({}, 0, 0).to_file);
  const launch::StreamRoute both = launch::stream_route({.log_dir = "/l"}, 0, 1);
  EXPECT_TRUE(both.to_console && both.to_file);
  const launch::StreamRoute redirected =
      launch::stream_route({.log_dir = "/l", .redirects = out}, 0, 0);
  EXPECT_TRUE(!redirected.to_console && redirected.to_file);
  const launch::StreamRoute other = launch::stream_route({.log_dir = "/l", .redirects = out}, 0, 1);
  EXPECT_TRUE(other.to_console && !other.to_file);
  const launch::StreamRoute teed =
      launch::stream_route({.log_dir = "/l", .redirects = out, .tee = out}, 0, 0);
  EXPECT_TRUE(teed.to_console && teed.to_file);
}

TEST(StreamRoute, AFilterIsForTheConsoleAlone) {
  const launch::OutputOptions options{.log_dir = "/l", .shown = {0, 2}};
  EXPECT_TRUE(launch::stream_route(options, 2, 0).to_console);
  EXPECT_FALSE(launch::stream_route(options, 1, 0).to_console);
  EXPECT_TRUE(launch::stream_route(options, 1, 0).to_file);
}

TEST(Prefix, FilledForARank) {
  EXPECT_EQ(launch::filled_prefix("[${rank}/${local_rank} ${other}] ", 12, 3), "[12/3 ${other}] ");
}

TEST(HoldsAny, IsAPlainSearch) {
  EXPECT_TRUE(launch::holds_any("loss 3.2\n", {"x", "loss"}));
  EXPECT_FALSE(launch::holds_any("loss 3.2\n", {"l.ss"}));
  EXPECT_FALSE(launch::holds_any("loss 3.2\n", {}));
}

}  // namespace
}  // namespace lockstep
