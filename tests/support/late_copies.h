#pragma once

// A device that there is none of: its memory is ordinary memory, and its copies are made by
// threads, late and at moments of their own. Who forgets to wait for one gets other values.

#include <memory>

#include "device/copies.h"

namespace lockstep::testing_support {

std::unique_ptr<device::Copies> make_late_copies(at::Device device);

}  // namespace lockstep::testing_support
