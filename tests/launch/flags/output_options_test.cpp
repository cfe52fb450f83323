#include "launch/flags/output_options.h"

#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

TEST(StreamChoice, OneNumberOrByLocalRank) {
  const StreamChoice all = StreamChoice::parse("2", "-r");
  EXPECT_EQ(all.of(0), 2u);
  EXPECT_EQ(all.of(700), 2u);
  const StreamChoice some = StreamChoice::parse("0:3,10:1,11:2", "-r");
  EXPECT_EQ(some.of(0), 3u);
  EXPECT_EQ(some.of(1), 0u);
  EXPECT_EQ(some.of(10), 1u);
  EXPECT_EQ(some.of(11), 2u);
  EXPECT_FALSE(StreamChoice::parse("0", "-r").any());
  EXPECT_TRUE(some.any());
  for (const char* text :
       {"", "4", "-1", "0:4", "0:", ":1", "0:1,", "0:1,1", "0:1,0:2", "0:1;1:2", "5000:1"}) {
    EXPECT_THROW(StreamChoice::parse(text, "-r"), UsageError) << text;
  }
}

TEST(StreamRoute, FileConsoleOrBoth) {
  const StreamChoice out{.all = 1};
  EXPECT_TRUE(stream_route({}, 0, 0).to_console);
  EXPECT_FALSE(stream_route({}, 0, 0).to_file);
  const StreamRoute both = stream_route({.log_dir = "/l"}, 0, 1);
  EXPECT_TRUE(both.to_console && both.to_file);
  const StreamRoute redirected = stream_route({.log_dir = "/l", .redirects = out}, 0, 0);
  EXPECT_TRUE(!redirected.to_console && redirected.to_file);
  const StreamRoute other = stream_route({.log_dir = "/l", .redirects = out}, 0, 1);
  EXPECT_TRUE(other.to_console && !other.to_file);
  const StreamRoute teed = stream_route({.log_dir = "/l", .redirects = out, .tee = out}, 0, 0);
  EXPECT_TRUE(teed.to_console && teed.to_file);
}

TEST(StreamRoute, AFilterIsForTheConsoleAlone) {
  const OutputOptions options{.log_dir = "/l", .shown = {0, 2}};
  EXPECT_TRUE(stream_route(options, 2, 0).to_console);
  EXPECT_FALSE(stream_route(options, 1, 0).to_console);
  EXPECT_TRUE(stream_route(options, 1, 0).to_file);
}

TEST(Prefix, FilledForARank) {
  EXPECT_EQ(filled_prefix("[${rank}/${local_rank} ${other}] ", 12, 3), "[12/3 ${other}] ");
}

TEST(HoldsAny, IsAPlainSearch) {
  EXPECT_TRUE(holds_any("loss 3.2\n", {"x", "loss"}));
  EXPECT_FALSE(holds_any("loss 3.2\n", {"l.ss"}));
  EXPECT_FALSE(holds_any("loss 3.2\n", {}));
}

}  // namespace
}  // namespace lockstep
