// A rank that says which device it has: "rank 1 cuda:0 10", where 10 is a sum computed there. An
// error is one line, and exit code 2.

#include <cstdlib>
#include <exception>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <lockstep/device/device.h>

int main() try {
  const at::Device device = lockstep::local_device();
  const float sum = at::arange(5, at::TensorOptions(device)).sum().item<float>();  // it works
  const char* rank = std::getenv("RANK");
  fmt::print("rank {} {} {}\n", rank ? rank : "none", device.str(), sum);
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 2;
}
