#include "support/nursery.h"

#include <cstdlib>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "support/json_channel.h"

namespace lockstep::testing_support {
namespace {

using Json = nlohmann::json;

constexpr const char* kSocketVariable = "LOCKSTEP_TEST_NURSERY";

Json ask(int socket, const Json& question, int fd = -1) {
  send_json(socket, question, fd);
  Json answer = receive_json(socket).json;
  if (!answer.is_object()) {
    throw IoError("nursery: it has died");
  }
  return answer;
}

}  // namespace

Nursery::Nursery(const std::map<std::string, std::string>& env) {
  base::FdPair pair = base::make_socket_pair(SOCK_SEQPACKET);
  base::ProcessOptions options;
  options.argv = {"/proc/self/exe"};
  options.env = env;
  options.env[kSocketVariable] = std::to_string(pair.write.get());
  options.inherit_fds = {pair.write.get()};
  process_ = base::Process(options);
  socket_ = std::move(pair.read);
}

pid_t Nursery::start(const std::map<std::string, std::string>& env, int channel) {
  const pid_t pid = ask(socket_.get(), {{"start", env}}, channel).at("pid");
  if (pid <= 0) {  // to kill(2), -1 is everybody
    throw IoError("nursery: cannot fork a rank");
  }
  return pid;
}

base::ExitStatus Nursery::wait(pid_t pid) {
  return base::ExitStatus::from_wait(ask(socket_.get(), {{"wait", pid}}).at("status"));
}

bool is_nursery() {
  return base::Env().has(kSocketVariable);
}

std::optional<int> forked_rank() {
  base::UniqueFd socket(static_cast<int>(*base::Env().integer(kSocketVariable, 0, 1 << 20)));
  const pid_t nursery = ::getpid();
  for (;;) {
    JsonMessage question = receive_json(socket.get());
    if (!question.json.is_object()) {
      return std::nullopt;
    }
    if (question.json.contains("wait")) {
      int status = 0;
      ::waitpid(question.json.at("wait").get<pid_t>(), &status, 0);
      send_json(socket.get(), {{"status", status}});
      continue;
    }
    const pid_t pid = ::fork();
    if (pid != 0) {
      send_json(socket.get(), {{"pid", pid}});
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
