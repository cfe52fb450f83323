#pragma once

// What a call on tensors of a device carries along.

#include <exception>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include <lockstep/base/error.h>

#include "comm/backends/backend.h"
#include "device/copies.h"

namespace lockstep::comm {

struct Staging {
  std::shared_ptr<device::Copies> copies;
  device::MomentPtr before;  // the call reads its tensors after this
  device::MomentPtr after;   // the result is there after this; set before the call is done
};

// For what only this rank does: an error of the device, or of memory, that no other rank has. The
// others wait for this rank, and its next call must not be taken for the one that failed: the
// group ends. Errors of lockstep's own are known to the group already.
template <typename Body>
void abandon_on_error(Backend& carrier, const Call& call, Body body) {
  try {
    body();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string text = error.what();  // libtorch's have a stack below their first line
    carrier.abandon(call.text() + " failed on it: " + text.substr(0, text.find('\n')));
    throw;
  }
}

// Memory of the host for as many elements, flat.
inline at::Tensor host_copy_of(device::Copies& copies, const at::Tensor& tensor) {
  return copies.host_memory(static_cast<int64_t>(tensor.nbytes())).view(tensor.scalar_type());
}

}  // namespace lockstep::comm
