#include <csignal>
#include <fcntl.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <lockstep/comm/requests.h>

#include "base/unique_fd.h"

namespace lockstep {
namespace {

// A pager that nobody scrolls, a terminal after Ctrl-S.
TEST(StopSignals, ANoticeThatNobodyReadsDoesNotHoldUpTheProgram) {
  const base::FdPair pipe = base::make_pipe();
  ::fcntl(pipe.write.get(), F_SETFL, O_NONBLOCK);
  const std::string filling(4096, 'x');
  while (::write(pipe.write.get(), filling.data(), filling.size()) > 0) {
  }
  ::fcntl(pipe.write.get(), F_SETFL, 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(10);  // ends it if it stands still
    ::dup2(pipe.write.get(), STDERR_FILENO);
    const StopSignals signals("stopping after this step\n");
    ::raise(SIGTERM);
    ::_exit(signals.received() == SIGTERM ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "it was ended by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace lockstep
