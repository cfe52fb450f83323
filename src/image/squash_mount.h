#pragma once

// Mounting a squashfs image on a folder: by the kernel, through a loop device that goes away with
// the mount, or else by squashfuse, a child of the caller that dies with it.

#include <string>

namespace lockstep::image {

struct SquashMount {
  int image_fd = -1;        // REQUIRED: the open image; by this, for its path may be hidden by now
  std::string image;        // REQUIRED: its path, for messages
  std::string folder;       // REQUIRED: where to mount it
  bool kernel_may = false;  // false in a user namespace, where the kernel mounts no squashfs
};

// Read-only, without devices and set-uid programs. A squashfuse that it starts is a child of this
// process, in a session of its own, so that a Ctrl-C meant for the job does not take the job's
// files away; it gets SIGKILL when the thread that called this ends. Throws IoError with the
// reasons.
void mount_squashfs(const SquashMount& mount);

}  // namespace lockstep::image
