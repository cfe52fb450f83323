#include "bench/peer_process.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <lockstep/base/error.h>

namespace lockstep {

namespace {

constexpr auto kPeerPatience = std::chrono::minutes(10);

}  // namespace

void PeerProcess::start(std::vector<std::string> argv, std::map<std::string, std::string> env) {
  ::signal(SIGPIPE, SIG_IGN);  // a peer that has ended is an error, not the end of this process
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
  size_t end = read_.find('\n');
  while (end == std::string::npos) {
    const size_t searched = read_.size();
    if (!read_more()) {
      return "";  // what it said on standard error says why
    }
    end = read_.find('\n', searched);
  }
  const std::string line = read_.substr(0, end);
  read_.erase(0, end + 1);
  return line;
}

std::string PeerProcess::bytes(size_t count) {
  while (read_.size() < count && read_more()) {
  }
  const std::string taken = read_.substr(0, count);
  read_.erase(0, taken.size());
  return taken;
}

std::string PeerProcess::ending() {
  to_.reset();
  const auto status = process_->wait(base::Deadline::after(kPeerPatience));
  return status ? status->text() : "no end at all";
}

bool PeerProcess::read_more() {
  constexpr size_t kPiece = 1 << 16;
  const base::Deadline deadline = base::Deadline::after(kPeerPatience);
  pollfd entry{from_.get(), POLLIN, 0};
  int n = 0;
  do {
    n = ::poll(&entry, 1, deadline.poll_ms());
  } while (n < 0 && errno == EINTR);
  if (n == 0) {
    throw IoError("the peer has not answered for {} minutes", kPeerPatience.count());
  }
  const size_t old_size = read_.size();
  read_.resize(old_size + kPiece);
  const ssize_t got = ::read(from_.get(), read_.data() + old_size, kPiece);
  read_.resize(old_size + static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return got > 0;
}

}  // namespace lockstep
