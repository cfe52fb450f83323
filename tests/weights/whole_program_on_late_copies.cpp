// With LOCKSTEP_TEST_DEVICE_PATH=1 every case of this program, in its ranks too, runs on CPU
// tensors that are reached only by copies, which come late: as those of a GPU do.

#include <cstdlib>
#include <memory>

#include "device/memory.h"
#include "support/late_copies.h"

namespace lockstep {
namespace {

const auto whole_program =
    std::getenv("LOCKSTEP_TEST_DEVICE_PATH") != nullptr
        ? std::make_unique<device::CopiesOnCpu>(testing_support::make_late_copies)
        : nullptr;

}  // namespace
}  // namespace lockstep
