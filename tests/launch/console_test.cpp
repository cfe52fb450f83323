#include "launch/console.h"

#include <climits>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

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
  FdPair pipe = make_pipe();
  Console console({.fd = pipe.write.get()});
  console.add("r0: ", "one\n");
  console.add("r1: ", "unfinished");
  console.add("", "as it is");
  console.add("r0: ", "\r");
  EXPECT_GT(console.backlog(), 0u);
  console.write_some();
  EXPECT_EQ(console.backlog(), 0u);
  EXPECT_EQ(read_available(pipe.read.get()), "r0: one\nr1: unfinished\nas it is\r");
}

TEST(Console, ASlowReaderMakesABacklogNotABlock) {
  FdPair pipe = make_pipe();
  Console console({.fd = pipe.write.get()});
  const std::string line(99, 'x');
  std::string expected, got;
  for (int i = 0; i < 5000; ++i) {
    console.add("", line + "\n");
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
  FdPair pipe = make_pipe();
  ::fcntl(pipe.write.get(), F_SETFL, O_NONBLOCK);
  Console console({.fd = pipe.write.get()});
  const std::string line = std::string(300000, 'x') + "\n";  // more than the pipe holds
  console.add("", line);
  std::string got;
  while (console.backlog() > 0) {
    console.write_some();
    got += read_available(pipe.read.get());
  }
  EXPECT_EQ(got, line);
}

TEST(Console, AReaderThatLeftIsNoticed) {
  ::signal(SIGPIPE, SIG_IGN);
  FdPair pipe = make_pipe();
  Console console({.fd = pipe.write.get()});
  pipe.read.reset();
  console.add("", "x\n");
  console.write_some();
  EXPECT_TRUE(console.closed());
  console.add("", "y\n");
  EXPECT_EQ(console.backlog(), 0u);
  ::signal(SIGPIPE, SIG_DFL);
}

TEST(Console, PrefixNamesTheNodeWhenThereAreSeveral) {
  FdPair pipe = make_pipe();
  EXPECT_EQ(line_prefix(2, 0, 1, pipe.write.get()), "r2: ");
  EXPECT_EQ(line_prefix(6, 1, 2, pipe.write.get()), "n1 r6: ");
}

}  // namespace
}  // namespace lockstep
