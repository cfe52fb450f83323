#include "support/nursery.h"

#include <cstdlib>
#include <cstring>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "base/env.h"

namespace lockstep::testing_support {
namespace {

using Json = nlohmann::json;

constexpr const char* kSocketVariable = "LOCKSTEP_TEST_NURSERY";
constexpr size_t kMaxMessage = 1 << 16;

struct Message {
  Json json;    // not an object: the other end has gone
  UniqueFd fd;  // if one came with it
};

// A message's place for one descriptor.
union FdSpace {
  cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];
};

void send_message(int socket, const Json& json, int fd = -1) {
  std::string text = json.dump();
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
    throw IoError("nursery: {}", errno_text(errno));
  }
}

Message receive_message(int socket) {
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
  Message received{Json::parse(text.substr(0, static_cast<size_t>(n)), nullptr, false), {}};
  if (const cmsghdr* header = CMSG_FIRSTHDR(&message)) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    received.fd = UniqueFd(fd);
  }
  return received;
}

Json ask(int socket, const Json& question, int fd = -1) {
  send_message(socket, question, fd);
  Json answer = receive_message(socket).json;
  if (!answer.is_object()) {
    throw IoError("nursery: it has died");
  }
  return answer;
}

}  // namespace

Nursery::Nursery(const std::map<std::string, std::string>& env) {
  FdPair pair = make_socket_pair(SOCK_SEQPACKET);
  ProcessOptions options;
  options.argv = {"/proc/self/exe"};
  options.env = env;
  options.env[kSocketVariable] = std::to_string(pair.write.get());
  options.inherit_fds = {pair.write.get()};
  process_ = Process(options);
  socket_ = std::move(pair.read);
}

pid_t Nursery::start(const std::map<std::string, std::string>& env, int channel) {
  return ask(socket_.get(), {{"start", env}}, channel).at("pid");
}

ExitStatus Nursery::wait(pid_t pid) {
  return ExitStatus::from_wait(ask(socket_.get(), {{"wait", pid}}).at("status"));
}

bool is_nursery() {
  return Env().has(kSocketVariable);
}

std::optional<int> forked_rank() {
  UniqueFd socket(static_cast<int>(*Env().integer(kSocketVariable, 0, 1 << 20)));
  const pid_t nursery = ::getpid();
  for (;;) {
    Message question = receive_message(socket.get());
    if (!question.json.is_object()) {
      return std::nullopt;
    }
    if (question.json.contains("wait")) {
      int status = 0;
      ::waitpid(question.json.at("wait").get<pid_t>(), &status, 0);
      send_message(socket.get(), {{"status", status}});
      continue;
    }
    const pid_t pid = ::fork();
    if (pid != 0) {
      send_message(socket.get(), {{"pid", pid}});
      continue;
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != nursery) {
      std::_Exit(1);  // it died before
    }
    ::unsetenv(kSocketVariable);
    for (const auto& [name, value] : question.json.at("start").items()) {
      ::setenv(name.c_str(), value.get<std::string>().c_str(), 1);
    }
    return question.fd.release();
  }
}

}  // namespace lockstep::testing_support
