#include "launch/line_splitter.h"

#include <algorithm>

namespace lockstep {

void LineSplitter::feed(std::string_view bytes, const Emit& emit) {
  while (!bytes.empty()) {
    const size_t end = bytes.find_first_of("\r\n");
    const size_t room = kMaxLineBytes - partial_.size();
    const size_t take = std::min(end == std::string_view::npos ? bytes.size() : end + 1, room);
    const bool complete = take == room || (end != std::string_view::npos && take == end + 1);
    const std::string_view piece = bytes.substr(0, take);
    bytes.remove_prefix(take);
    if (!complete) {
      partial_ += piece;
    } else if (partial_.empty()) {
      emit(piece);
    } else {
      partial_ += piece;
      emit(partial_);
      partial_.clear();
    }
  }
}

void LineSplitter::finish(const Emit& emit) {
  if (!partial_.empty()) {
    emit(partial_);
    partial_.clear();
  }
}

void Tail::add(std::string_view line) {
  const bool redraw = line.ends_with('\r');
  if (line == "\r" || (redraw_ && line == "\n")) {
    redraw_ = redraw;  // nothing new is shown; after "\n" the line stays
    return;
  }
  if (redraw_) {
    lines_.pop_back();
  }
  redraw_ = redraw;
  if (line.ends_with('\n') || redraw) {
    line.remove_suffix(1);
  }
  lines_.emplace_back(line.substr(0, kMaxLineBytes));
  if (lines_.size() > kMaxLines) {
    lines_.pop_front();
  }
}

std::string Tail::text() const {
  std::string text;
  for (const std::string& line : lines_) {
    text += text.empty() ? line : "\n" + line;
  }
  return text;
}

}  // namespace lockstep
