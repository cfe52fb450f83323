#include "bench/data/bench_data_peer.h"

#include <cstdio>
#include <sstream>

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep {

DataPeer::DataPeer(const DataPeerOptions& options, const std::string& folder) {
  if (options.python.empty()) {
    return;
  }
  std::string why = "has no torchvision";
  try {
    process_.start({options.python, "-c", options.script, folder,
                    std::to_string(options.num_workers), std::to_string(options.batch_size)},
                   {{"PYTHONWARNINGS", "ignore"}});
    is_present_ = process_.answer() == "ready";
  } catch (const IoError& /*error*/) {
    why = "cannot be started";
  }
  if (!is_present_) {
    fmt::print(stderr, "lockstep bench: {} {}, its figures are left out\n", options.python, why);
  }
}

double DataPeer::read_all(int64_t count) {
  process_.say("go\n");
  std::istringstream words(process_.answer());
  double seconds = 0;
  int64_t num_read = 0;
  if (!(words >> seconds >> num_read) || num_read != count) {
    throw IoError("bench data: the peer read {} pictures of {}", num_read, count);
  }
  return seconds;
}

}  // namespace lockstep
