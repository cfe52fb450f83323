// All of the libraries beside a made-up libtorch, for gpu_probe_test: each is this file under
// another name (FAKE_NAME), and is asked for what it plays. FAKE_CRASH and FAKE_HANG name one that
// does so as soon as it is loaded, as a torn file does, or one on a file system that is gone.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <unistd.h>

namespace {

struct Table {
  int32_t version;
};

constexpr Table kTable{4};

bool is_named_by(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && std::string_view(value) == FAKE_NAME;
}

__attribute__((constructor)) void fail_if_told_to() {
  if (is_named_by("FAKE_CRASH")) {
    ::abort();
  }
  if (is_named_by("FAKE_HANG")) {
    ::sleep(1000);
  }
}

}  // namespace

extern "C" {

size_t cudnnGetVersion() {
  return 91900;
}
int ncclGetVersion(int* version) {
  *version = 22809;
  return 0;
}
int cuFileGetVersion(int* version) {
  *version = 1150;
  return 0;
}
const void* fake_plugin() {
  return &kTable;
}
}
