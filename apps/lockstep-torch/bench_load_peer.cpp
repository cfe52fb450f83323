#include "bench_load_peer.h"

#include <cerrno>
#include <sstream>
#include <unistd.h>

#include <lockstep/base/error.h>

namespace lockstep {

LoadPeer::LoadPeer(const LoadBenchPlan& plan, const std::string& path) {
  FdPair input = make_pipe();
  FdPair output = make_pipe();
  to_ = std::move(input.write);
  from_ = std::move(output.read);
  try {
    // The threshold is glibc's own first one, fixed: as in a process that has just started, memory
    // for a model comes from the kernel.
    process_.emplace(ProcessOptions{.argv = {plan.python, "-c", plan.peer_script, path,
                                             plan.fresh_memory ? "fresh" : "initialised"},
                                    .env = {{"MALLOC_MMAP_THRESHOLD_", "131072"}},
                                    .stdin_fd = input.read.get(),
                                    .stdout_fd = output.write.get()});
  } catch (const IoError&) {
    return;  // no Python is no peer
  }
  input.read.reset();
  output.write.reset();
  is_present_ = answer() == "ready";
}

void LoadPeer::prepare() {
  say("prepare\n");
  if (answer() != "made") {
    throw IoError("the peer made no model");
  }
}

LoadPeer::Load LoadPeer::load(bool with_crc) {
  say(with_crc ? "check\n" : "go\n");
  std::istringstream words(answer());
  Load load;
  if (!(words >> load.start_ns >> load.end_ns >> load.cpu_ns >> load.crc)) {
    throw IoError("the peer gave no times");
  }
  return load;
}

void LoadPeer::say(const std::string& line) {
  write_all(to_.get(), line.data(), line.size());
}

std::string LoadPeer::answer() {
  std::string line;
  for (;;) {
    char letter = 0;
    const ssize_t n = ::read(from_.get(), &letter, 1);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n <= 0) {
      return "";  // it has ended; what it said on standard error says why
    }
    if (letter == '\n') {
      return line;
    }
    line += letter;
  }
}

}  // namespace lockstep
