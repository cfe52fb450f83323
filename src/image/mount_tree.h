#pragma once

// Mounts that are made first and attached to a place afterwards (Linux 5.12 and newer), and paths
// that are looked up inside a root folder, where an absolute link cannot lead out of it.

#include <string>

#include "base/unique_fd.h"

namespace lockstep::image {

// A copy of the mounts at and below `path`, attached nowhere yet. Throws IoError.
base::UniqueFd clone_tree(const std::string& path);

// An empty file system in memory, attached nowhere yet. `mode` of its root: "1777". Throws IoError.
base::UniqueFd new_tmpfs(const char* mode);

// Makes the whole tree read-only. Throws IoError.
void make_read_only(int tree);

// Opens `path` (O_PATH), taking `root` for "/", also in links. Empty, with errno, if it cannot.
base::UniqueFd open_in_root(int root, const std::string& path);

// The same without openat2(2), component by component: for kernels before 5.6 and for seccomp
// filters that do not know the call.
base::UniqueFd walk_in_root(int root, const std::string& path);

// Mounts `tree` on `place`, as opened by open_in_root. Throws IoError.
void attach_tree(int tree, int place);

// The host's path of `path` inside `root`: links of the part that exists are followed inside
// `root`; the part that does not exist stays as it is. Throws IoError if `root` is not there, and
// for a link that leads to nothing inside `root`.
std::string path_in_root(const std::string& root, const std::string& path);

}  // namespace lockstep::image
