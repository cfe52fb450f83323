#include "base/console.h"

#include <climits>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "base/unique_fd.h"

namespace lockstep {
namespace {

std::string read_available(int fd) {
  std::string text;
  char buffer[65536];
  pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
  while (::poll(&ready, 1, 0) == 1) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n <= 0) {
      break;
    }
    text.append(buffer, static_cast<size_t>(n));
  }
  return text;
}

TEST(Console, WritesWhatWasAddedInOrder) {
  base::FdPair pipe = base::make_pipe();
  base::Console console({.fd = pipe.write.get()});
  console.add({.writer = 1, .prefix = "r0: ", .text = "one\n"});
  console.add({.writer = 2, .prefix = "r1: ", .text = "unfinished"});
  console.add({.writer = 1, .text = "as it is", .is_raw = true});
  console.add({.writer = 1, .prefix = "r0: ", .text = "\r"});
  EXPECT_GT(console.backlog(), 0u);
  console.write_some();
  EXPECT_EQ(console.backlog(), 0u);
  EXPECT_EQ(read_available(pipe.read.get()), "r0: one\nr1: unfinished\nas it is\r");
}

TEST(Console, ASlowReaderMakesABacklogNotABlock) {
  base::FdPair pipe = base::make_pipe();
  base::Console console({.fd = pipe.write.get()});
  const std::string line(99, 'x');
  std::string expected, got;
  for (int i = 0; i < 5000; ++i) {
    console.add({.writer = 1, .text = line + "\n", .is_raw = true});
    expected += line + "\n";
  }
  while (got.size() < expected.size()) {
    pollfd room{.fd = pipe.write.get(), .events = POLLOUT, .revents = 0};
    if (::poll(&room, 1, 0) == 1) {
      console.write_some();  // never waits: there was room for PIPE_BUF bytes
    } else {
      got += read_available(pipe.read.get());
    }
    got += console.backlog() == 0 ? read_available(pipe.read.get()) : "";
  }
  EXPECT_EQ(got, expected);
}

TEST(Console, ShortWritesGoOnWhereTheyStopped) {
  base::FdPair pipe = base::make_pipe();
  ::fcntl(pipe.write.get(), F_SETFL, O_NONBLOCK);
  base::Console console({.fd = pipe.write.get()});
  const std::string line = std::string(300000, 'x') + "\n";  // more than the pipe holds
  console.add({.writer = 1, .text = line, .is_raw = true});
  std::string got;
  while (console.backlog() > 0) {
    console.write_some();
    got += read_available(pipe.read.get());
  }
  EXPECT_EQ(got, line);
}

TEST(Console, AReaderThatLeftIsNoticed) {
  ::signal(SIGPIPE, SIG_IGN);
  base::FdPair pipe = base::make_pipe();
  base::Console console({.fd = pipe.write.get()});
  pipe.read.reset();
  console.add({.writer = 1, .text = "x\n"});
  console.write_some();
  EXPECT_TRUE(console.closed());
  console.add({.writer = 1, .text = "y\n"});
  EXPECT_EQ(console.backlog(), 0u);
  ::signal(SIGPIPE, SIG_DFL);
}

// What several writers leave on one console.
std::string shown(const std::vector<base::ConsolePiece>& pieces) {
  base::FdPair pipe = base::make_pipe();
  base::Console console({.fd = pipe.write.get()});
  for (const base::ConsolePiece& piece : pieces) {
    console.add(piece);
  }
  console.write_some();
  return read_available(pipe.read.get());
}

TEST(Console, AnUnfinishedLineGoesOnOrIsEndedByAnother) {
  const base::ConsolePiece loading{
      .writer = 1, .prefix = "r0: ", .text = "Loading... ", .is_open = true};
  const base::ConsolePiece done{.writer = 1, .prefix = "r0: ", .text = "done\n"};
  const base::ConsolePiece hello{.writer = 2, .prefix = "r1: ", .text = "hello\n"};
  const base::ConsolePiece end{.writer = 1, .prefix = "r0: ", .text = ""};
  EXPECT_EQ(shown({loading, done}), "r0: Loading... done\n");
  EXPECT_EQ(shown({loading, hello, done}), "r0: Loading... \nr1: hello\nr0: done\n");
  EXPECT_EQ(shown({loading, end, hello}), "r0: Loading... \nr1: hello\n");
  EXPECT_EQ(shown({loading, hello, end}), "r0: Loading... \nr1: hello\n");
}

TEST(Console, BarsReplaceEachOtherAndLinesDoNot) {
  const base::ConsolePiece back0{.writer = 1, .prefix = "r0: ", .text = "\r"};
  const base::ConsolePiece back1{.writer = 2, .prefix = "r1: ", .text = "\r"};
  const base::ConsolePiece bar0{
      .writer = 1, .prefix = "r0: ", .text = "10%", .is_open = true, .is_redraw = true};
  const base::ConsolePiece bar1{
      .writer = 2, .prefix = "r1: ", .text = "20%", .is_open = true, .is_redraw = true};
  const base::ConsolePiece line{.writer = 3, .prefix = "r2: ", .text = "line\n"};
  EXPECT_EQ(shown({back0, bar0, back0, bar0}), "\rr0: 10%\rr0: 10%");
  EXPECT_EQ(shown({bar0, back1, bar1}), "r0: 10%\rr1: 20%");
  EXPECT_EQ(shown({bar0, line, bar0}), "r0: 10%\nr2: line\nr0: 10%");
}

// A terminal is both of them, and of every agent.
TEST(Console, ConsolesOfOnePlaceKnowOfEachOther) {
  base::FdPair pipe = base::make_pipe();
  base::ConsoleBoard board;
  base::Console out({.fd = pipe.write.get(), .board = &board});
  base::Console err({.fd = pipe.write.get(), .board = &board});
  out.add({.writer = 1, .prefix = "r0: ", .text = "Loading... ", .is_open = true});
  out.write_some();
  err.add({.writer = 2, .prefix = "r0: ", .text = "warning\n"});
  err.write_some();
  EXPECT_EQ(read_available(pipe.read.get()), "r0: Loading... \nr0: warning\n");
}

// Nor does it wait for another writer whose reader has stopped in the middle of a line.
TEST(Console, NeverBlocks) {
  base::FdPair pipe = base::make_pipe();
  base::ConsoleBoard board;
  base::Console first({.fd = pipe.write.get(), .board = &board});
  base::Console second({.fd = pipe.write.get(), .board = &board});
  first.add({.writer = 1, .text = std::string(300000, 'x') + "\n"});  // more than the pipe holds
  first.write_some();
  EXPECT_GT(first.backlog(), 0u);
  second.add({.writer = 2, .text = "y\n"});
  second.write_some();
  EXPECT_TRUE(second.is_busy());
  std::string got;
  while (first.backlog() + second.backlog() > 0) {
    got += read_available(pipe.read.get());
    first.write_some();
    second.write_some();
  }
  got += read_available(pipe.read.get());
  EXPECT_EQ(got, std::string(300000, 'x') + "\ny\n");
}

// The one piece that the pipe has no room for stays whole; lines after it are dropped, not torn.
TEST(Console, AReaderWhoIsLeftMissesWhatComesUntilHeReads) {
  base::FdPair pipe = base::make_pipe();
  base::Console console({.fd = pipe.write.get()});
  const std::string large = std::string(300000, 'x') + "\n";  // more than the pipe holds
  console.add({.writer = 1, .text = large});
  console.add({.writer = 1, .text = "queued\n"});
  console.write_some();
  const uint64_t taken = console.bytes_taken();
  EXPECT_GT(taken, 0u);
  console.leave_reader();
  EXPECT_TRUE(console.reader_is_left());
  console.add({.writer = 1, .text = "missed\n"});
  EXPECT_EQ(console.backlog(), large.size() - taken);
  std::string got;
  while (console.backlog() > 0) {
    got += read_available(pipe.read.get());
    console.write_some();
  }
  console.add({.writer = 1, .text = "seen\n"});
  EXPECT_FALSE(console.reader_is_left());
  console.write_some();
  EXPECT_EQ(got + read_available(pipe.read.get()), large + "seen\n");
}

TEST(Console, PrefixNamesTheNodeWhenThereAreSeveral) {
  base::FdPair pipe = base::make_pipe();
  EXPECT_EQ(base::line_prefix(2, 0, 1, pipe.write.get()), "r2: ");
  EXPECT_EQ(base::line_prefix(6, 1, 2, pipe.write.get()), "n1 r6: ");
}

}  // namespace
}  // namespace lockstep
