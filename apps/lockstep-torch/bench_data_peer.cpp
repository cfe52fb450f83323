#include "bench_data_peer.h"

#include <cerrno>
#include <cstdio>
#include <sstream>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep {

DataPeer::DataPeer(const DataPeerOptions& options, const std::string& folder) {
  if (options.python.empty()) {
    return;
  }
  FdPair input = make_pipe();
  FdPair output = make_pipe();
  to_ = std::move(input.write);
  from_ = std::move(output.read);
  std::string why = "has no torchvision";
  try {
    process_.emplace(ProcessOptions{
        .argv = {options.python, "-c", options.script, folder, std::to_string(options.num_workers),
                 std::to_string(options.batch_size)},
        .env = {{"PYTHONWARNINGS", "ignore"}},
        .stdin_fd = input.read.get(),
        .stdout_fd = output.write.get()});
    input.read.reset();
    output.write.reset();
    is_present_ = answer() == "ready";
  } catch (const IoError& /*error*/) {
    why = "cannot be started";
  }
  if (!is_present_) {
    fmt::print(stderr, "lockstep bench: {} {}, its figures are left out\n", options.python, why);
  }
}

double DataPeer::read_all(int64_t count) {
  write_all(to_.get(), "go\n", 3);
  std::istringstream words(answer());
  double seconds = 0;
  int64_t num_read = 0;
  if (!(words >> seconds >> num_read) || num_read != count) {
    throw IoError("bench data: the peer read {} pictures of {}", num_read, count);
  }
  return seconds;
}

std::string DataPeer::answer() {
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
