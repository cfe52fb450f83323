#include "bench/allreduce/bench_mpi_peer.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/secret.h"
#include "bench/allreduce/bench_rank.h"

namespace lockstep {
namespace {

constexpr auto kPatience =
    kBenchPatience - std::chrono::seconds(20);  // before our ranks lose theirs
constexpr auto kStartPatience = std::chrono::seconds(30);
constexpr auto kEndPatience = std::chrono::seconds(10);

// Its layout is that of struct Answer in mpi_peer.c.
struct MpiAnswer {
  std::array<int64_t, kMaxMpiBatch + 1> stamps_ns;
  std::array<char, 160> mistake;
};

// The name is in the abstract namespace: there is no file that a killed run could leave behind.
base::UniqueFd listen_at(const std::string& name, int backlog) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  base::UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd || ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(fd.get(), backlog) != 0) {
    throw IoError("cannot listen for the ranks of an MPI: {}", base::errno_text(errno));
  }
  return fd;
}

bool is_own_user(int fd) {
  ucred other{};
  socklen_t size = sizeof other;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 && other.uid == ::getuid();
}

}  // namespace

MpiRanks::MpiRanks(const BenchMpi& mpi, int num_ranks) : name_(mpi.name) {
  const std::string socket = "lockstep-bench-" + base::make_secret().substr(0, 32);
  const base::UniqueFd listener = listen_at(socket, num_ranks);
  std::vector<std::string> command = mpi.command;
  command.push_back("@" + socket);
  process_ = base::Process({.argv = std::move(command), .stdout_fd = STDERR_FILENO});
  accept_ranks(listener.get(), num_ranks);
}

MpiRanks::~MpiRanks() {
  try {
    tell({.bytes = 0});
    if (process_.wait(base::Deadline::after(kEndPatience))) {
      return;
    }
  } catch (const Error& /*error*/) {
    // One of them is gone, and the run has said so.
  }
  process_.kill(SIGKILL);
}

void MpiRanks::accept_ranks(int listener, int num_ranks) {
  const base::Deadline deadline = base::Deadline::after(kStartPatience);
  ranks_.resize(static_cast<size_t>(num_ranks));
  for (int joined = 0; joined < num_ranks;) {
    pollfd entries[] = {{listener, POLLIN, 0}, {process_.pidfd(), POLLIN, 0}};
    const int n = ::poll(entries, 2, deadline.poll_ms());
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n == 0) {
      throw TimeoutError("{}: {} of {} ranks have reported within {}", name_, joined, num_ranks,
                         base::to_text(kStartPatience));
    }
    if (entries[0].revents == 0) {
      const auto status = process_.poll();
      throw IoError("{}: its mpiexec has ended before {} ranks had reported ({})", name_, num_ranks,
                    status ? status->text() : "it cannot be watched");
    }
    base::UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd || !is_own_user(fd.get())) {
      continue;
    }
    base::Socket socket(std::move(fd));
    int64_t hello[2];  // rank, size
    socket.receive(hello, sizeof hello, deadline);
    if (hello[1] != num_ranks || hello[0] < 0 || hello[0] >= num_ranks) {
      throw IoError("{}: rank {} sees {} ranks, not {}; do mpiexec and mpicc belong together?",
                    name_, hello[0], hello[1], num_ranks);
    }
    ranks_[static_cast<size_t>(hello[0])] = std::move(socket);
    ++joined;
  }
}

void MpiRanks::tell(const MpiRequest& request) {
  const base::Deadline deadline = base::Deadline::after(kPatience);
  for (base::Socket& rank : ranks_) {
    if (rank) {
      rank.send(&request, sizeof request, deadline);
    }
  }
}

BatchStamps MpiRanks::run(const MpiRequest& request) {
  const base::Deadline deadline = base::Deadline::after(kPatience);
  tell(request);
  BatchStamps stamps;
  stamps.last_us.assign(static_cast<size_t>(request.batch) + 1, 0);
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    MpiAnswer answer{};
    try {
      ranks_[rank].receive(&answer, sizeof answer, deadline);
    } catch (const Error& error) {
      throw IoError("{}: rank {} of {} has not answered at {} bytes: {}", name_, rank,
                    ranks_.size(), request.bytes, error.what());
    }
    if (answer.mistake[0] != 0) {
      throw InternalError("a wrong result by {} at {} bytes on rank {}: {}", name_, request.bytes,
                          rank, answer.mistake.data());
    }
    for (size_t i = 0; i < stamps.last_us.size(); ++i) {
      const double us = static_cast<double>(answer.stamps_ns[i]) / 1e3;
      stamps.last_us[i] = std::max(stamps.last_us[i], us);
      if (i == 0) {
        stamps.first_us = rank == 0 ? us : std::min(stamps.first_us, us);
      }
    }
  }
  return stamps;
}

}  // namespace lockstep
