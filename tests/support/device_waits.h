#pragma once

// How often a thread has waited for a GPU, by libtorch's own warnings about such calls.

#include <dlfcn.h>
#include <string>

#include <c10/util/Exception.h>

namespace lockstep::testing_support {

// What libtorch keeps of c10::cuda::warning_state(), a variable of its library: 0 says nothing of
// waits, 1 warns. Null if this libtorch does not show it.
inline int* sync_debug_mode() {
  return static_cast<int*>(
      ::dlsym(RTLD_DEFAULT, "_ZZN3c104cuda13warning_stateEvE14warning_state_"));
}

// Counts while it lives, if sync_debug_mode() is 1.
class SyncCounter : public c10::WarningHandler {
 public:
  SyncCounter() : before_(c10::WarningUtils::get_warning_handler()) {
    c10::WarningUtils::set_warning_handler(this);
  }
  ~SyncCounter() override { c10::WarningUtils::set_warning_handler(before_); }
  void process(const c10::Warning& warning) override {
    if (warning.msg().find("synchronizing") != std::string::npos) {
      ++num_syncs;
    }
  }
  int num_syncs = 0;

 private:
  c10::WarningHandler* before_;
};

}  // namespace lockstep::testing_support
