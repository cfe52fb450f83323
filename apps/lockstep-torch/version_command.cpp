#include "version_command.h"

#include <dlfcn.h>
#include <string>

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/format.h>
#include <torch/version.h>

namespace lockstep {
namespace {

// The type information of c10d::ProcessGroupGloo, which a libtorch built without Gloo does not
// have.
bool has_gloo() {
  return ::dlsym(RTLD_DEFAULT, "_ZTIN4c10d16ProcessGroupGlooE") != nullptr;
}

}  // namespace

int version_command(int /*argc*/, char** /*argv*/) {
  fmt::print("libtorch {}, CPU capability {}\n", TORCH_VERSION, at::get_cpu_capability());
  if (has_gloo()) {
    fmt::print("Gloo available: c10d::ProcessGroupGloo is built into libtorch\n");
  }
  fmt::print("{}, {} threads\n", at::get_openmp_version(), at::get_num_threads());
  return 0;
}

}  // namespace lockstep
