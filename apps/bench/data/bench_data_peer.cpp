#include "bench/data/bench_data_peer.h"

#include <cstdio>
#include <cstring>
#include <sstream>

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep {

DataPeer::DataPeer(const DataBenchPlan& plan, const std::string& folder) {
  if (!plan.has_peer()) {
    return;
  }
  std::string why = "has no torchvision";
  try {
    process_.start({plan.python, "-c", plan.peer_script, folder, std::to_string(plan.num_workers),
                    std::to_string(plan.batch_size)},
                   {{"PYTHONWARNINGS", "ignore"}});
    is_present_ = process_.answer() == "ready";
  } catch (const IoError& /*error*/) {
    why = "cannot be started";
  }
  if (!is_present_) {
    fmt::print(stderr, "lockstep bench: {} {}, its figures are left out\n", plan.python, why);
  }
}

std::vector<float> DataPeer::pixels(int64_t count, int64_t num_values) {
  process_.say(fmt::format("pixels {}\n", count));
  const std::string line = process_.answer();
  if (line != fmt::format("pixels {}", num_values)) {
    throw IoError("bench data: the peer was asked for {} numbers of {} pictures and said \"{}\"",
                  num_values, count, line);
  }
  std::vector<float> values(static_cast<size_t>(num_values));
  const std::string bytes = process_.bytes(values.size() * sizeof(float));
  if (bytes.size() != values.size() * sizeof(float)) {
    throw IoError("bench data: the peer ended after {} of {} bytes of pixels", bytes.size(),
                  values.size() * sizeof(float));
  }
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
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
