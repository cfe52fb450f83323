#include "launch/line_splitter.h"

#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

std::vector<std::string> split(const std::vector<std::string>& chunks) {
  LineSplitter splitter;
  std::vector<std::string> result;
  const auto emit = [&result](std::string_view line) { result.emplace_back(line); };
  for (const std::string& chunk : chunks) {
    splitter.feed(chunk, emit);
  }
  splitter.finish(emit);
  return result;
}

using Lines = std::vector<std::string>;

TEST(LineSplitter, LinesAreWholeHoweverTheyArrive) {
  const Lines expected{"one\n", "\n", "two\r", "three"};
  EXPECT_EQ(split({"one\n\ntwo\rthree"}), expected);
  EXPECT_EQ(split({"o", "ne", "\n", "\ntw", "o\r", "thr", "ee"}), expected);
  EXPECT_EQ(split({}), Lines{});
  EXPECT_EQ(split({"\n"}), Lines{"\n"});
}

TEST(LineSplitter, LongLinesAreCutAndNothingIsLost) {
  const std::string text = std::string(3 * kMaxLineBytes - 1, 'x') + "\nrest";
  for (const size_t chunk_bytes : {size_t{1000}, kMaxLineBytes, text.size()}) {
    std::vector<std::string> chunks;
    for (size_t at = 0; at < text.size(); at += chunk_bytes) {
      chunks.push_back(text.substr(at, chunk_bytes));
    }
    std::string joined;
    for (const std::string& line : split(chunks)) {
      EXPECT_LE(line.size(), kMaxLineBytes);
      joined += line;
    }
    EXPECT_EQ(joined, text);
  }
}

TEST(Tail, KeepsTheNewestLinesShortened) {
  Tail tail;
  EXPECT_EQ(tail.text(), "");
  for (int i = 0; i < 30; ++i) {
    tail.add(std::to_string(i) + "\n");
  }
  EXPECT_TRUE(tail.text().starts_with("10\n11\n"));
  EXPECT_TRUE(tail.text().ends_with("\n29"));
  tail.add(std::string(10000, 'x'));
  EXPECT_LT(tail.text().size(), 1000u);
}

TEST(Tail, AProgressLineTakesOnePlace) {
  Tail tail;
  for (const char* line : {"start\n", "10%\r", "20%\r", "\r", "30%\r", "\n", "end\n"}) {
    tail.add(line);
  }
  EXPECT_EQ(tail.text(), "start\n30%\nend");
}

}  // namespace
}  // namespace lockstep
