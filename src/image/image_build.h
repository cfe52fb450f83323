#pragma once

// `lockstep image build`: one .sqsh file out of a folder or a fresh Debian, with programs added.

#include <functional>
#include <string>
#include <vector>

namespace lockstep::image {

// A program, or a folder, to put into an image.
struct ImageAddition {
  std::string source;  // REQUIRED: on the host
  std::string target;  // REQUIRED: in the image, absolute
};

// "PROGRAM[:DST]". A PROGRAM without a slash is searched in PATH. Without DST it goes to
// /usr/local/bin; a DST that ends in a slash is a folder to put it into. Throws UsageError.
ImageAddition parse_addition(const std::string& text);

struct ImageBuildOptions {
  std::string output;        // REQUIRED: job.sqsh
  std::string from;          // a root folder, which is copied; may be empty. Either this
  bool debian = false;       // or a new Debian (mmdebstrap)
  std::string requirements;  // a file for `pip install -r`; only with debian
  std::vector<ImageAddition> additions;  // over what is there
  std::vector<std::string> folders;      // more mount points to make, absolute
  bool libraries = true;  // with each added program the shared libraries that the image lacks
  bool force = false;     // replace an output that exists
  std::function<void(const std::string&)> progress;  // is told each step, one line; may be empty
};

// Builds the image. What it is made of is put together in OUTPUT.build, beside OUTPUT, and packed
// into OUTPUT.partial, which becomes OUTPUT once it is complete: at any moment OUTPUT is what it
// was or all of the new. A build that was killed leaves these two; the next one removes them.
//
// Whatever the root lacks of the following is added: /etc/rc (Enroot's entry), /etc/rc.local,
// /etc/environment with PATH, /etc/fstab, /etc/passwd and group; mount points /data /checkpoints
// /workspace /proc /sys /dev /tmp /run and the files that runtimes bind (/etc/hosts, hostname,
// resolv.conf, machine-id); `sh` and `kill` of this host (its busybox if there is one).
//
// Throws UsageError for options that contradict each other or a program or tool that is missing,
// IoError when a tool fails (disk full included).
void build_image(const ImageBuildOptions& options);

}  // namespace lockstep::image
