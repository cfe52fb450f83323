#include <ATen/core/Tensor.h>

#include "comm/backends/backend.h"

namespace lockstep::comm {
namespace {

class SingleBackend : public Backend {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string name() const override { return "single"; }
  std::chrono::milliseconds timeout() const override { return kDefaultTimeout; }
  std::optional<Store> store() const override { return std::nullopt; }

  std::shared_ptr<WorkState> start(Call call) override {
    // Every reduction of one value is that value; what remains are the operations with an output of
    // their own.
    if (call.input.defined() && call.output.defined() && !call.input.is_same(call.output)) {
      call.output.view({-1}).copy_(call.input.view({-1}));
    }
    return nullptr;
  }
};

}  // namespace

std::shared_ptr<Backend> make_single_backend() {
  return std::make_shared<SingleBackend>();
}

}  // namespace lockstep::comm
