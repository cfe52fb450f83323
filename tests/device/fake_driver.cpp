// Stands in for the NVIDIA driver, libcuda.so.1: whoever loads it leaves the file that
// LOCKSTEP_TEST_DRIVER_LOADED names. Of the driver's functions it has one, which says the version
// in LOCKSTEP_TEST_DRIVER_CUDA, so CUDA is not usable.

#include <cstdlib>
#include <fcntl.h>
#include <unistd.h>

namespace {

__attribute__((constructor)) void tell() {
  if (const char* file = std::getenv("LOCKSTEP_TEST_DRIVER_LOADED")) {
    const int fd = open(file, O_WRONLY | O_CREAT, 0600);
    if (fd >= 0) {
      close(fd);
    }
  }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int cuDriverGetVersion(int* version) {
  const char* text = std::getenv("LOCKSTEP_TEST_DRIVER_CUDA");
  *version = text ? std::atoi(text) : 0;
  return text ? 0 : 3;  // CUDA_ERROR_NOT_INITIALIZED
}
