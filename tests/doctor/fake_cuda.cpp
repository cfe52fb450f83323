// A libcuda.so.1 that plays a driver, for gpu_probe_test. FAKE_CUDA is what cuInit answers; 34 is
// the toolkit's stub, whose functions all answer it.

#include <cstdlib>

namespace {

constexpr int kStub = 34;

int answer() {
  const char* value = std::getenv("FAKE_CUDA");
  return value ? std::atoi(value) : 0;
}

}  // namespace

extern "C" {

int cuInit(unsigned) {
  return answer();
}
int cuDriverGetVersion(int* version) {
  if (answer() == kStub) {
    return kStub;
  }
  *version = 13010;
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = 2;
  return 0;
}
}
