// Ranks tell when they were stopped and when they began anew by the steady clock, which all
// processes of a host share, so the times between processes are differences of one clock.

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <poll.h>
#include <signal.h>
#include <sstream>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "base/process/process.h"
#include "bench/launch/bench_launch.h"
#include "sibling_program.h"

namespace lockstep::app {

namespace {

constexpr auto kFaultPatience = std::chrono::seconds(60);  // only failures take it

constexpr const char* kReady = "ready ";      // host pid
constexpr const char* kStopped = "stopped ";  // time
constexpr const char* kStarted = "started ";  // time

int64_t now_ns() {
  return std::chrono::nanoseconds(base::Clock::now().time_since_epoch()).count();
}

void say(const char* what, int64_t number) {
  fmt::print("{}{}\n", what, number);
  std::fflush(stdout);
}

// Returns the numbers after `word`, one per rank that has said it with a whole line.
std::vector<int64_t> numbers(const std::string& text, const std::string& word) {
  std::vector<int64_t> found;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line) && !stream.eof();) {
    const size_t at = line.find(word);
    const auto number = at == std::string::npos
                            ? std::nullopt
                            : base::parse_integer(line.substr(at + word.size()), 1, INT64_MAX);
    if (number) {
      found.push_back(*number);
    }
  }
  return found;
}

// Returns false at the end of the text, or at the deadline.
bool read_more(int fd, std::string& text, base::Deadline deadline) {
  pollfd entry{fd, POLLIN, 0};
  int n = 0;
  do {
    n = ::poll(&entry, 1, deadline.poll_ms());
  } while (n < 0 && errno == EINTR);
  char buffer[4096];
  const ssize_t got = n > 0 ? ::read(fd, buffer, sizeof buffer) : 0;
  text.append(buffer, static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return got > 0;
}

double largest_ms(const std::vector<int64_t>& times_ns, int64_t since_ns) {
  return static_cast<double>(*std::max_element(times_ns.begin(), times_ns.end()) - since_ns) / 1e6;
}

}  // namespace

int launch_fault_rank() {
  const int64_t begin_ns = now_ns();
  const base::Env env;
  if (env.integer("TORCHELASTIC_RESTART_COUNT", 0, 1).value_or(0) == 1) {
    say(kStarted, begin_ns);
    return 0;
  }
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &stop, nullptr);
  say(kReady, base::host_pid());
  const timespec limit{.tv_sec = kFaultPatience.count()};
  if (::sigtimedwait(&stop, nullptr, &limit) != SIGTERM) {
    return 1;
  }
  say(kStopped, now_ns());
  return 0;
}

FaultTimes measure_fault(int num_ranks) {
  const size_t num = static_cast<size_t>(num_ranks);
  const base::Deadline deadline = base::Deadline::after(kFaultPatience);
  const std::string self = base::own_program();
  base::FdPair pipe = base::make_pipe();
  base::Process job({.argv = {self, "run", "--nproc-per-node", std::to_string(num_ranks),
                              "--max-restarts", "1", self, "bench", "launch", "fault-rank"},
                     .stdout_fd = pipe.write.get(),
                     .stderr_fd = pipe.write.get()});
  pipe.write.reset();
  std::string text;
  while (numbers(text, kReady).size() < num && read_more(pipe.read.get(), text, deadline)) {
  }
  const auto pids = numbers(text, kReady);
  const int64_t death_ns = now_ns();
  if (pids.size() == num) {
    ::kill(static_cast<pid_t>(pids.back()), SIGKILL);
  }
  while (read_more(pipe.read.get(), text, deadline)) {
  }
  const auto status = job.wait(deadline);
  const auto stopped = numbers(text, kStopped);
  const auto started = numbers(text, kStarted);
  if (!status || !status->ok() || stopped.size() != num - 1 || started.size() != num) {
    throw IoError(
        "bench launch: of {} ranks {} came up, one was killed, {} were told to stop and {} began "
        "anew; the job: {}; its output:\n{}",
        num, pids.size(), stopped.size(), started.size(), status ? status->text() : "hangs", text);
  }
  return {.death_to_stop_ms = largest_ms(stopped, death_ns),
          .restart_ms = largest_ms(started, death_ns)};
}

}  // namespace lockstep::app
