#include "bench/load/bench_load_peer.h"

#include <sstream>

#include <lockstep/base/error.h>

namespace lockstep {

LoadPeer::LoadPeer(const LoadBenchPlan& plan, const std::string& path) {
  try {
    // The threshold is glibc's own first one, fixed: as in a process that has just started, memory
    // for a model comes from the kernel.
    process_.start(
        {plan.python, "-c", plan.peer_script, path, plan.fresh_memory ? "fresh" : "initialised"},
        {{"MALLOC_MMAP_THRESHOLD_", "131072"}});
  } catch (const IoError&) {
    return;  // no Python is no peer
  }
  is_present_ = process_.answer() == "ready";
}

void LoadPeer::prepare() {
  process_.say("prepare\n");
  if (process_.answer() != "made") {
    throw IoError("the peer made no model");
  }
}

LoadPeer::Load LoadPeer::load(bool with_crc) {
  process_.say(with_crc ? "check\n" : "go\n");
  std::istringstream words(process_.answer());
  Load load;
  if (!(words >> load.start_ns >> load.end_ns >> load.cpu_ns >> load.crc)) {
    throw IoError("the peer gave no times");
  }
  return load;
}

}  // namespace lockstep
