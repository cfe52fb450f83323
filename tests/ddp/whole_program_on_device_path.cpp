// With LOCKSTEP_TEST_DEVICE_PATH=1 every case of this program, in its ranks too, runs on CPU
// tensors that take the path of a device's.

#include <cstdlib>
#include <memory>

#include "ddp/device/device_path.h"

namespace lockstep {
namespace {

const auto whole_program = std::getenv("LOCKSTEP_TEST_DEVICE_PATH") != nullptr
                               ? std::make_unique<ddp::DevicePathOnCpu>()
                               : nullptr;

}  // namespace
}  // namespace lockstep
