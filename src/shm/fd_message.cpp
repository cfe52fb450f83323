#include "shm/fd_message.h"

#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sys/socket.h>

#include <lockstep/base/error.h>

namespace lockstep::shm {

void wait_for(int fd, short events, base::Deadline deadline) {
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
      throw IoError("shared memory: poll: {}", base::errno_text(errno));
    }
  }
}

void send_message(int fd, const void* data, size_t bytes, const std::vector<int>& fds,
                  base::Deadline deadline) {
  LOCKSTEP_CHECK(fds.size() <= kMaxFdsPerMessage, "{} descriptors in a message", fds.size());
  iovec part{.iov_base = const_cast<void*>(data), .iov_len = bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFdsPerMessage * sizeof(int))] = {};
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
    } else if (errno == ETOOMANYREFS) {
      if (deadline.expired()) {
        throw TimeoutError(
            "shared memory: cannot pass {} descriptors on: processes of this user have too many "
            "under way; raise the limit of open files (ulimit -n)",
            fds.size());
      }
      ::poll(nullptr, 0, 1);  // nothing tells when another process of the user takes its own
    } else if (errno != EINTR) {
      throw IoError("shared memory: a rank of this host is gone: {}", base::errno_text(errno));
    }
  }
}

std::vector<base::UniqueFd> receive_message(int fd, void* data, size_t bytes,
                                            base::Deadline deadline) {
  iovec part{.iov_base = data, .iov_len = bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFdsPerMessage * sizeof(int))] = {};
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
      throw IoError("shared memory: a rank of this host is gone: {}", base::errno_text(errno));
    }
  }
  std::vector<base::UniqueFd> fds;
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
  if (static_cast<size_t>(length) != bytes || (message.msg_flags & MSG_TRUNC) != 0) {
    throw IoError("shared memory: a message of {} bytes came, {} were expected", length, bytes);
  }
  return fds;
}

}  // namespace lockstep::shm
