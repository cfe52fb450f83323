// All of the libraries beside a made-up libtorch, for gpu_probe_test: each is this file under
// another name, and is asked for what it plays.

#include <cstddef>
#include <cstdint>

namespace {

struct Table {
  int32_t version;
};

constexpr Table kTable{4};

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
