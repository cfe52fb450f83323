#pragma once

// A device that there is none of: its memory is ordinary memory, and its copies are made by
// threads, late and at moments of their own. Who forgets to wait for one gets other values.

#include <functional>
#include <memory>

#include "device/copies.h"

namespace lockstep::testing_support {

std::unique_ptr<device::Copies> make_late_copies(at::Device device);

// What they call, on the thread that asks for the copy or the memory; it may throw.
struct LateHooks {
  std::function<void()> before_copy;
  std::function<void()> before_host_memory;

  static void call(const std::function<void()>& hook) {
    if (hook) {
      hook();
    }
  }
};
std::unique_ptr<device::Copies> make_hooked_copies(LateHooks hooks);

// Work of the current stream, which all threads of a process share: a thread does it, in order,
// after this has returned. Operations that are started later come after it.
void queue_late(std::function<void()> work);
// Waits until all of it is done.
void finish_late();

}  // namespace lockstep::testing_support
