#pragma once

// Cuts a stream of bytes into lines, and remembers the last ones.

#include <array>
#include <chrono>
#include <deque>
#include <functional>
#include <string>
#include <string_view>

#include "base/deadline.h"

namespace lockstep::base {

// Longer lines are cut: what is held back for one line has a limit.
inline constexpr size_t kMaxLineBytes = 64 * 1024;

// How long an unfinished line is held back. One that ends where a buffer of
// stdio does was cut by its writer, who is about to go on, not left as a prompt.
inline constexpr auto kUnfinishedLineWait = std::chrono::milliseconds(100);
inline constexpr auto kCutLineWait = std::chrono::seconds(1);

// A line ends at "\n" or at "\r" (a progress display redraws its line with it); "\r\n" counts as
// "\r", then an empty line. Every byte fed in is given out exactly once, in order.
class LineSplitter {
 public:
  using Emit = std::function<void(std::string_view line)>;  // with its terminator, if it has one

  void feed(std::string_view bytes, const Emit& emit);

  // Gives out an unfinished line as it is, at the end of the stream or when it is due.
  void finish(const Emit& emit);

  // When an unfinished line has waited long enough for its end: it is a prompt ("Loading... ") or a
  // display that is drawn anew with the next "\r". Never if nothing is held back.
  Deadline due() const { return due_; }

 private:
  std::string partial_;
  Deadline due_ = Deadline::never();
};

// The last lines of a rank as a terminal would show them, for the report of its failure. A "\r"
// takes the next text to the start of its line, where it replaces what stands there: a progress
// display is one line, and the line before it stays.
class Tail {
 public:
  static constexpr size_t kMaxLines = 20;
  static constexpr size_t kMaxLineBytes = 500;
  static constexpr size_t kNumStreams = 2;

  // A piece of output, a line or a part of one, as a LineSplitter gives it out. Lines of the two
  // streams do not run into each other.
  void add(std::string_view piece, size_t stream = 0);

  // Joined by newlines, with none at the end; unfinished lines come last.
  std::string text() const;

 private:
  struct Unfinished {
    std::string text;
    bool is_replaced = false;  // by what comes next: the last byte was "\r"
  };

  std::deque<std::string> lines_;
  std::array<Unfinished, kNumStreams> unfinished_;
};

}  // namespace lockstep::base
