#include "shm/meeting.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/secret.h"

namespace lockstep::shm {
namespace {

using namespace std::chrono_literals;

constexpr auto kProofTime = 2s;        // for a stranger to show that it belongs here
constexpr size_t kFdsPerMessage = 64;  // the kernel takes 253

struct Hello {
  Nonce nonce;
  int32_t rank;
};

void wait_for(int fd, short events, Deadline deadline) {
  while (true) {
    pollfd entry{.fd = fd, .events = events, .revents = 0};
    const int ready = ::poll(&entry, 1, deadline.poll_ms());
    if (ready > 0) {
      return;  // also for errors: the call that follows tells which
    }
    if (ready == 0 && deadline.expired()) {
      throw TimeoutError("shared memory: a rank of this host did not come to the exchange in time");
    }
    if (ready < 0 && errno != EINTR) {
      throw IoError("shared memory: poll: {}", errno_text(errno));
    }
  }
}

// One datagram, with descriptors.
void send_message(int fd, const void* data, size_t bytes, const std::vector<int>& fds,
                  Deadline deadline) {
  iovec part{.iov_base = const_cast<void*>(data), .iov_len = bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(kFdsPerMessage * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  while (::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == EAGAIN) {
      wait_for(fd, POLLOUT, deadline);
    } else if (errno != EINTR) {
      throw IoError("shared memory: a rank of this host is gone: {}", errno_text(errno));
    }
  }
}

// Receives exactly `bytes`, and the descriptors that came along.
std::vector<UniqueFd> receive_message(int fd, void* data, size_t bytes, Deadline deadline) {
  iovec part{.iov_base = data, .iov_len = bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(kFdsPerMessage * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t length = -1;
  while ((length = ::recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT)) < 0) {
    if (errno == EAGAIN) {
      wait_for(fd, POLLIN, deadline);
    } else if (errno != EINTR) {
      throw IoError("shared memory: a rank of this host is gone: {}", errno_text(errno));
    }
  }
  std::vector<UniqueFd> fds;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
      const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int received = -1;
        std::memcpy(&received, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
        fds.emplace_back(received);
      }
    }
  }
  if (length == 0) {
    throw IoError("shared memory: a rank of this host closed its connection");
  }
  if (static_cast<size_t>(length) != bytes || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    throw IoError(
        "shared memory: a message of {} bytes came, {} were expected (too many open "
        "files?)",
        length, bytes);
  }
  return fds;
}

UniqueFd make_unix_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) {
    throw IoError("shared memory: socket: {}", errno_text(errno));
  }
  return fd;
}

// A name that begins with a zero byte is in no file system.
socklen_t fill_address(sockaddr_un& address, const std::string& name) {
  address.sun_family = AF_UNIX;
  LOCKSTEP_CHECK(name.size() + 1 <= sizeof address.sun_path, "shm: the address {} is too long",
                 name);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

void check_user(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    throw IoError("shared memory: SO_PEERCRED: {}", errno_text(errno));
  }
  if (peer.uid != ::geteuid()) {
    throw UsageError("shared memory: user {} tried to join a job of user {}", peer.uid,
                     ::geteuid());
  }
}

}  // namespace

Meeting::Meeting(MeetingOptions options) : options_(std::move(options)) {
  peers_.resize(options_.rank == 0 ? static_cast<size_t>(options_.size) : 1);
  if (options_.rank != 0 || options_.size == 1) {
    return;
  }
  address_ = "lockstep-" + make_secret();
  listener_ = make_unix_socket();
  sockaddr_un address{};
  const socklen_t length = fill_address(address, address_);
  if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(listener_.get(), options_.size) != 0) {
    throw IoError("shared memory: cannot listen: {}", errno_text(errno));
  }
}

void Meeting::adopt(size_t place, UniqueFd fd) {
  const std::lock_guard lock(mutex_);
  if (interrupted_) {
    throw IoError("shared memory: the exchange was given up");
  }
  peers_[place] = std::move(fd);
}

void Meeting::stop_if_interrupted() const {
  const std::lock_guard lock(mutex_);
  if (interrupted_) {
    throw IoError("shared memory: the exchange was given up");
  }
}

int Meeting::prove(int fd, bool is_leader, Deadline deadline) const {
  check_user(fd);
  const Hello mine{.nonce = random_nonce(), .rank = options_.rank};
  send_message(fd, &mine, sizeof mine, {}, deadline);
  Hello theirs{};
  receive_message(fd, &theirs, sizeof theirs, deadline);
  const Nonce& client = is_leader ? theirs.nonce : mine.nonce;
  const Nonce& server = is_leader ? mine.nonce : theirs.nonce;
  const auto proof_of = [&](bool leader, int rank) {
    return make_proof(options_.secret, leader ? "server" : "client",
                      fmt::format("{}/{}", options_.purpose, rank), client, server);
  };
  const Proof proof = proof_of(is_leader, options_.rank);
  send_message(fd, proof.data(), proof.size(), {}, deadline);
  Proof shown{};
  receive_message(fd, shown.data(), shown.size(), deadline);
  if (!same_proof(shown, proof_of(!is_leader, theirs.rank))) {
    throw UsageError("shared memory: a process that does not know the job's secret tried to join");
  }
  return theirs.rank;
}

void Meeting::accept_all(Deadline deadline) {
  int num_missing = options_.size - 1;
  while (num_missing > 0) {
    wait_for(listener_.get(), POLLIN, deadline);
    stop_if_interrupted();  // a listener that was shut down is ready for ever, with nobody to
                            // accept
    UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) {
        continue;
      }
      throw IoError("shared memory: accept: {}", errno_text(errno));
    }
    try {
      const int rank = prove(fd.get(), true, deadline.earlier(Deadline::after(kProofTime)));
      if (rank < 1 || rank >= options_.size || peers_[static_cast<size_t>(rank)]) {
        throw UsageError("shared memory: there is no place for rank {} of {}", rank, options_.size);
      }
      adopt(static_cast<size_t>(rank), std::move(fd));
      --num_missing;
    } catch (const Error& error) {  // a stranger must not keep the others from coming
      const std::lock_guard lock(mutex_);
      if (interrupted_) {
        throw;
      }
      log::warn("shm", "refused a connection: {}", error.what());
    }
  }
  const std::lock_guard lock(mutex_);
  listener_.reset();
}

void Meeting::join(const std::string& address_text, Deadline deadline) {
  UniqueFd fd = make_unix_socket();
  sockaddr_un address{};
  const socklen_t length = fill_address(address, address_text);
  while (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    if (errno == EAGAIN) {  // its queue is full: as many may wait as there are ranks
      ::poll(nullptr, 0, 1);
    } else if (errno != EINTR) {
      throw IoError("shared memory: cannot reach rank 0 of this host: {}", errno_text(errno));
    }
    if (deadline.expired()) {
      throw TimeoutError("shared memory: rank 0 of this host does not answer");
    }
  }
  const int raw = fd.get();
  adopt(0, std::move(fd));  // before the proof: an interrupt reaches it there
  if (const int leader = prove(raw, false, deadline); leader != 0) {
    throw UsageError("shared memory: rank {} answered as rank 0", leader);
  }
}

void Meeting::give_all(int to, const std::vector<UniqueFd>& fds, Deadline deadline) const {
  for (size_t first = 0; first < fds.size(); first += kFdsPerMessage) {
    std::vector<int> batch;
    for (size_t i = first; i < std::min(fds.size(), first + kFdsPerMessage); ++i) {
      batch.push_back(fds[i].get());
    }
    const auto count = static_cast<uint32_t>(batch.size());
    send_message(to, &count, sizeof count, batch, deadline);
  }
}

std::vector<UniqueFd> Meeting::exchange(int fd, Deadline deadline) {
  const auto num_ranks = static_cast<size_t>(options_.size);
  std::vector<UniqueFd> all;
  if (options_.rank == 0) {
    all.resize(num_ranks);
    all[0] = UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!all[0]) {
      throw IoError("shared memory: dup: {}", errno_text(errno));
    }
    for (size_t rank = 1; rank < num_ranks; ++rank) {
      uint32_t count = 0;
      auto given = receive_message(peers_[rank].get(), &count, sizeof count, deadline);
      if (given.size() != 1) {
        throw IoError("shared memory: rank {} gave {} descriptors, not one", rank, given.size());
      }
      all[rank] = std::move(given[0]);
    }
    for (size_t rank = 1; rank < num_ranks; ++rank) {
      give_all(peers_[rank].get(), all, deadline);
    }
    return all;
  }
  const uint32_t one = 1;
  send_message(peers_[0].get(), &one, sizeof one, {fd}, deadline);
  while (all.size() < num_ranks) {
    uint32_t count = 0;
    auto batch = receive_message(peers_[0].get(), &count, sizeof count, deadline);
    if (batch.empty() || batch.size() != count || all.size() + batch.size() > num_ranks) {
      throw IoError("shared memory: {} descriptors came, {} were announced", batch.size(), count);
    }
    std::move(batch.begin(), batch.end(), std::back_inserter(all));
  }
  return all;
}

void Meeting::interrupt() noexcept {
  const std::lock_guard lock(mutex_);
  interrupted_ = true;
  if (listener_) {
    ::shutdown(listener_.get(), SHUT_RDWR);
  }
  for (const UniqueFd& peer : peers_) {
    if (peer) {
      ::shutdown(peer.get(), SHUT_RDWR);
    }
  }
}

}  // namespace lockstep::shm
