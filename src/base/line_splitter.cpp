#include "base/line_splitter.h"

#include <algorithm>

namespace lockstep::base {

namespace {

constexpr size_t kStdioBuffer = 4096;  // of C at a pipe; Python's is a multiple

}  // namespace

void LineSplitter::feed(std::string_view bytes, const Emit& emit) {
  const Deadline due =
      Deadline::after(bytes.size() % kStdioBuffer == 0 ? std::chrono::nanoseconds(kCutLineWait)
                                                       : kUnfinishedLineWait);
  bool is_older = !partial_.empty();  // what will be left was begun before these bytes
  while (!bytes.empty()) {
    const size_t end = bytes.find_first_of("\r\n");
    const size_t room = kMaxLineBytes - partial_.size();
    const size_t take = std::min(end == std::string_view::npos ? bytes.size() : end + 1, room);
    const bool complete = take == room || (end != std::string_view::npos && take == end + 1);
    const std::string_view piece = bytes.substr(0, take);
    bytes.remove_prefix(take);
    is_older = is_older && !complete;
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
  if (partial_.empty()) {
    due_ = Deadline::never();
  } else {
    due_ = is_older ? due_.earlier(due) : due;
  }
}

void LineSplitter::finish(const Emit& emit) {
  due_ = Deadline::never();
  if (!partial_.empty()) {
    emit(partial_);
    partial_.clear();
  }
}

void Tail::add(std::string_view piece, size_t stream) {
  Unfinished& line = unfinished_[stream];
  const bool ends = piece.ends_with('\n');
  const bool returns = piece.ends_with('\r');
  if (ends || returns) {
    piece.remove_suffix(1);
  }
  if (!piece.empty()) {
    if (line.is_replaced) {
      line.text.clear();
    }
    line.text += piece.substr(0, kMaxLineBytes - std::min(kMaxLineBytes, line.text.size()));
    line.is_replaced = false;
  }
  line.is_replaced = line.is_replaced || returns;
  if (ends) {
    lines_.push_back(std::move(line.text));
    line = {};
  }
  if (lines_.size() > kMaxLines) {
    lines_.pop_front();
  }
}

std::string Tail::text() const {
  std::deque<std::string> shown = lines_;
  for (const Unfinished& line : unfinished_) {
    if (!line.text.empty()) {
      shown.push_back(line.text);
    }
  }
  std::string text;
  for (size_t i = shown.size() - std::min(shown.size(), kMaxLines); i < shown.size(); ++i) {
    text += text.empty() ? shown[i] : "\n" + shown[i];
  }
  return text;
}

}  // namespace lockstep::base
