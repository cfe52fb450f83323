#include "base/line_splitter.h"

#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

std::vector<std::string> split(const std::vector<std::string>& chunks) {
  base::LineSplitter splitter;
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
  const std::string text = std::string(3 * base::kMaxLineBytes - 1, 'x') + "\nrest";
  for (const size_t chunk_bytes : {size_t{1000}, base::kMaxLineBytes, text.size()}) {
    std::vector<std::string> chunks;
    for (size_t at = 0; at < text.size(); at += chunk_bytes) {
      chunks.push_back(text.substr(at, chunk_bytes));
    }
    std::string joined;
    for (const std::string& line : split(chunks)) {
      EXPECT_LE(line.size(), base::kMaxLineBytes);
      joined += line;
    }
    EXPECT_EQ(joined, text);
  }
}

TEST(LineSplitter, AnUnfinishedLineIsDueAfterAWhile) {
  base::LineSplitter splitter;
  std::string out;
  const auto emit = [&out](std::string_view text) { out += text; };
  EXPECT_TRUE(splitter.due().is_never());
  splitter.feed("whole\n", emit);
  EXPECT_TRUE(splitter.due().is_never());
  splitter.feed("Loading", emit);
  const auto due = splitter.due();
  EXPECT_LE(due.remaining(), base::kUnfinishedLineWait);
  splitter.feed("... ", emit);
  EXPECT_EQ(splitter.due().when(), due.when()) << "dots that keep coming must not put it off";
  splitter.finish(emit);
  EXPECT_TRUE(splitter.due().is_never());
  splitter.feed("done\n", emit);
  EXPECT_EQ(out, "whole\nLoading... done\n");
  splitter.feed(std::string(4096, 'x'), emit);
  EXPECT_GT(splitter.due().remaining(), base::kUnfinishedLineWait) << "a full buffer is no prompt";
}

TEST(Tail, KeepsTheNewestLinesShortened) {
  base::Tail tail;
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
  base::Tail tail;
  for (const char* line : {"start\n", "10%\r", "20%\r", "\r", "30%\r", "\n", "end\n"}) {
    tail.add(line);
  }
  EXPECT_EQ(tail.text(), "start\n30%\nend");
}

// tqdm begins every redraw with a carriage return, the first one too.
TEST(Tail, AReturnBeforeAnythingElseIsHarmless) {
  base::Tail tail;
  tail.add("\r");
  EXPECT_EQ(tail.text(), "");
  for (const char* piece : {" 0%\r", "10%\r", "\r", "20%"}) {
    tail.add(piece);
  }
  EXPECT_EQ(tail.text(), "20%");
  tail.add("\n");
  tail.add("\n");
  tail.add("end\n");
  EXPECT_EQ(tail.text(), "20%\n\nend");
}

TEST(Tail, TheLineBeforeAProgressDisplayStays) {
  base::Tail tail;
  for (const char* piece : {"epoch 1\n", "\r", " 0%\r", "10%\n", "done\r", "\n"}) {
    tail.add(piece);
  }
  EXPECT_EQ(tail.text(), "epoch 1\n10%\ndone");
}

TEST(Tail, StreamsDoNotRunIntoEachOther) {
  base::Tail tail;
  tail.add("\r", 1);
  tail.add("10%\r", 1);
  tail.add("loss ", 0);
  tail.add("20%\r", 1);
  tail.add("3.5\n", 0);
  tail.add("30%", 1);
  EXPECT_EQ(tail.text(), "loss 3.5\n30%");
}

}  // namespace
}  // namespace lockstep
