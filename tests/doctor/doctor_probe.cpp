// doctor_probe ROOT TORCH_PROGRAM TIMEOUT_MS: prints what probe_gpus() finds, as JSON. A program of
// its own, since LD_LIBRARY_PATH is read when one starts.

#include <cstdlib>

#include <fmt/format.h>

#include "doctor/gpu_json.h"
#include "doctor/gpu_probe.h"

int main(int argc, char** argv) {
  if (argc != 4) {
    return 2;
  }
  fmt::print("{}", lockstep::doctor::to_json(lockstep::doctor::probe_gpus(
                       {.root = argv[1],
                        .torch_program = argv[2],
                        .plugin_entry = "fake_plugin",
                        .timeout = std::chrono::milliseconds(std::atoi(argv[3]))})));
  return 0;
}
