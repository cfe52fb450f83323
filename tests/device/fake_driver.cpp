// Stands in for the NVIDIA driver, libcuda.so.1: whoever loads it leaves the file that
// LOCKSTEP_TEST_DRIVER_LOADED names. It has none of the driver's functions, so CUDA is not usable.

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
