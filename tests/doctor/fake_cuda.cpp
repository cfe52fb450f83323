// A libcuda.so.1 that plays a driver, for gpu_probe_test. FAKE_CUDA is what cuInit answers.

#include <cstdlib>

extern "C" {

int cuInit(unsigned) {
  const char* value = std::getenv("FAKE_CUDA");
  return value ? std::atoi(value) : 0;
}
int cuDriverGetVersion(int* version) {
  *version = 13010;
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = 2;
  return 0;
}
}
