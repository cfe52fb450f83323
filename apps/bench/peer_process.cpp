#include "bench/peer_process.h"

#include <cerrno>
#include <unistd.h>

namespace lockstep {

void PeerProcess::start(std::vector<std::string> argv, std::map<std::string, std::string> env) {
  base::FdPair input = base::make_pipe();
  base::FdPair output = base::make_pipe();
  to_ = std::move(input.write);
  from_ = std::move(output.read);
  process_.emplace(base::ProcessOptions{.argv = std::move(argv),
                                        .env = std::move(env),
                                        .stdin_fd = input.read.get(),
                                        .stdout_fd = output.write.get()});
}

void PeerProcess::say(const std::string& line) {
  base::write_all(to_.get(), line.data(), line.size());
}

std::string PeerProcess::answer() {
  std::string line;
  for (;;) {
    char letter = 0;
    const ssize_t n = ::read(from_.get(), &letter, 1);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n <= 0) {
      return "";  // what it said on standard error says why
    }
    if (letter == '\n') {
      return line;
    }
    line += letter;
  }
}

}  // namespace lockstep
