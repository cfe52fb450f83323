#include "support/json_channel.h"

#include <cerrno>
#include <cstring>
#include <sys/socket.h>

#include <lockstep/base/error.h>

namespace lockstep::testing_support {
namespace {

constexpr size_t kMaxMessage = 1 << 16;

// A message's place for one descriptor.
union FdSpace {
  cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];
};

}  // namespace

void send_json(int socket, const nlohmann::json& json, int fd) {
  std::string text = json.dump().substr(0, kMaxMessage);
  iovec part{text.data(), text.size()};
  FdSpace space{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = &space;
    message.msg_controllen = sizeof space;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  if (::sendmsg(socket, &message, MSG_NOSIGNAL) < 0) {
    throw IoError("test channel: {}", base::errno_text(errno));
  }
}

JsonMessage receive_json(int socket) {
  std::string text(kMaxMessage, '\0');
  iovec part{text.data(), text.size()};
  FdSpace space{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = &space;
  message.msg_controllen = sizeof space;
  const ssize_t n = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (n <= 0) {
    return {};
  }
  JsonMessage received;
  received.json =
      nlohmann::json::parse(text.substr(0, static_cast<size_t>(n)), nullptr, /*throws=*/false);
  if (const cmsghdr* header = CMSG_FIRSTHDR(&message)) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    received.fd = base::UniqueFd(fd);
  }
  return received;
}

}  // namespace lockstep::testing_support
