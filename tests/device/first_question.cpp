// A process whose first question about CUDA is libtorch's own: `first_question seed` or
// `first_question available`. Exits with 0 if a tensor on the GPU can be made afterwards.

#include <string>

#include <ATen/Context.h>
#include <ATen/ops/ones.h>

#include <lockstep/device/device.h>

int main(int argc, char** argv) {
  const std::string question = argc > 1 ? argv[1] : "";
  if (question == "seed") {
    at::manual_seed(1);
  } else if (question != "available" || !at::hasCUDA()) {
    return 1;
  }
  const at::Tensor x = at::ones({3}, at::TensorOptions(at::kCUDA));
  return x.sum().item<float>() == 3.0f && lockstep::cuda_is_available() ? 0 : 1;
}
