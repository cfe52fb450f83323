#pragma once

// What a call on tensors of a device carries along.

#include <memory>

#include <ATen/core/Tensor.h>

#include "device/copies.h"

namespace lockstep::comm {

struct Staging {
  std::shared_ptr<device::Copies> copies;
  device::MomentPtr before;  // the call reads its tensors after this
  device::MomentPtr after;   // the result is there after this; set before the call is done
};

// Memory of the host for as many elements, flat.
inline at::Tensor host_copy_of(device::Copies& copies, const at::Tensor& tensor) {
  return copies.host_memory(static_cast<int64_t>(tensor.nbytes())).view(tensor.scalar_type());
}

}  // namespace lockstep::comm
