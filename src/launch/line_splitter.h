#pragma once

// Cuts a stream of bytes into lines, and remembers the last ones.

#include <deque>
#include <functional>
#include <string>
#include <string_view>

namespace lockstep {

// Longer lines are cut: what is held back for one line has a limit.
inline constexpr size_t kMaxLineBytes = 64 * 1024;

// A line ends at "\n" or at "\r" (a progress display redraws its line with it); "\r\n" counts as
// "\r", then an empty line. Every byte fed in is given out exactly once, in order.
class LineSplitter {
 public:
  using Emit = std::function<void(std::string_view line)>;  // with its terminator, if it has one

  void feed(std::string_view bytes, const Emit& emit);

  // The end of the stream: gives out an unfinished last line.
  void finish(const Emit& emit);

 private:
  std::string partial_;
};

// The last lines of a rank, for the report of its failure.
class Tail {
 public:
  static constexpr size_t kMaxLines = 20;
  static constexpr size_t kMaxLineBytes = 500;

  void add(std::string_view line);

  // Joined by newlines, with none at the end.
  std::string text() const;

 private:
  std::deque<std::string> lines_;
  bool redraw_ = false;  // the newest line ended in "\r": the next one takes its place
};

}  // namespace lockstep
