#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iterator>
#include <poll.h>
#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/comm/requests.h>

#include "comm/stop_state.h"

namespace lockstep {

namespace comm::stop_state {

int64_t now_ms() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
}

int64_t ask() noexcept {
  int64_t asked = 0;
  const int64_t now = now_ms();
  return asked_ms.compare_exchange_strong(asked, now) ? now : asked;
}

}  // namespace comm::stop_state

namespace {

// Ctrl-C reaches a rank from the terminal and from the launcher, a request and a signal that
// follows it may be of one SIGTERM: what comes together is one.
constexpr int64_t kTogetherMs = 500;

constexpr int kSignals[] = {SIGINT, SIGTERM};

std::atomic<int> first_signal = 0;
std::atomic<const char*> first_notice = nullptr;  // null: no StopSignals lives
std::atomic<bool> has_launcher = false;
struct sigaction former[std::size(kSignals)];

// Whether lockstep, torchrun, srun or mpirun started this process.
bool is_launched() {
  constexpr const char* kNames[] = {"LOCKSTEP_STORE", "RANK", "SLURM_PROCID",
                                    "OMPI_COMM_WORLD_RANK"};
  return std::any_of(std::begin(kNames), std::end(kNames),
                     [](const char* name) { return std::getenv(name) != nullptr; });
}

// Writes only if there is room: the program stands still here, and otherwise it would do so for as
// long as the reader does not read.
void tell(const char* notice) {
  pollfd room{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  const bool has_room = ::poll(&room, 1, 0) == 1;
  if (has_room && ::write(STDERR_FILENO, notice, std::strlen(notice)) < 0) {
    return;  // nobody reads it; the request stands
  }
}

void hear(int signal) {
  const int former_errno = errno;
  int none = 0;
  const bool is_asked = comm::stop_state::asked_ms != 0;
  const int64_t age_ms = comm::stop_state::now_ms() - comm::stop_state::ask();
  if (is_asked && (age_ms > kTogetherMs || !has_launcher)) {
    ::signal(signal, SIG_DFL);
    ::raise(signal);  // as soon as this returns
    if (::getpid() == 1) {
      ::_exit(128 + signal);  // which the kernel spares the default action of a signal
    }
  } else if (first_signal.compare_exchange_strong(none, signal)) {
    tell(first_notice);
  }
  errno = former_errno;
}

}  // namespace

StopSignals::StopSignals(const char* notice) {
  const char* none = nullptr;
  if (!first_notice.compare_exchange_strong(none, notice)) {
    throw UsageError("signals: there is a StopSignals already; keep one at a time");
  }
  first_signal = 0;
  has_launcher = is_launched();
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    struct sigaction action {};
    action.sa_handler = hear;
    action.sa_flags = SA_RESTART;
    ::sigaction(kSignals[i], nullptr, &former[i]);
    if (kSignals[i] != SIGINT || former[i].sa_handler != SIG_IGN) {
      ::sigaction(kSignals[i], &action, nullptr);
    }
  }
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    ::sigaction(kSignals[i], &former[i], nullptr);
  }
  first_notice = nullptr;
}

int StopSignals::received() const {
  return first_signal;
}

}  // namespace lockstep
