#pragma once

// Fills the folder that becomes an image's root. Paths in the root are looked up
// inside it: an absolute link there never leads to the host's files.

#include <string>

#include "image/image_build.h"

namespace lockstep::image {

class ImageRoot {
 public:
  // `folder` exists. `libraries`: with each program those that the root lacks.
  ImageRoot(std::string folder, bool libraries)
      : folder_(std::move(folder)), libraries_(libraries) {}

  bool has(const std::string& path) const;

  // A program with its libraries, or a folder with all that is in it. Replaces what is there.
  // Throws UsageError or IoError.
  void add(const ImageAddition& addition);

  void add_folder(const std::string& path, int mode = 0755);

  // /bin, /lib and the like as links into /usr, mount points, and the files that runtimes expect;
  // whatever is there stays.
  void furnish();

  // `sh` and `kill` from this host, if the root has no /bin/sh. Returns what was added, for the
  // user to read; empty if nothing was needed. Throws UsageError if this host has no shell.
  std::string add_shell();

 private:
  std::string place(const std::string& path) const;  // on the host; the folder above it is made
  void add_file(const std::string& path, const std::string& text, int mode = 0644);
  void add_libraries(const std::string& program);
  void add_path();  // into /etc/environment, for Enroot: its own would be the host's

  std::string folder_;
  bool libraries_;
};

}  // namespace lockstep::image
