#include "image/mount_tree.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <fcntl.h>
#include <filesystem>
#include <linux/openat2.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

#include <lockstep/base/error.h>

namespace lockstep::image {

base::UniqueFd clone_tree(const std::string& path) {
  base::UniqueFd tree(
      ::open_tree(AT_FDCWD, path.c_str(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE));
  if (!tree) {
    throw IoError("cannot mount {} elsewhere: {}", path, base::errno_text(errno));
  }
  return tree;
}

base::UniqueFd new_tmpfs(const char* mode) {
  const base::UniqueFd context(::fsopen("tmpfs", FSOPEN_CLOEXEC));
  base::UniqueFd tree;
  if (context && ::fsconfig(context.get(), FSCONFIG_SET_STRING, "mode", mode, 0) == 0 &&
      ::fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) == 0) {
    tree.reset(::fsmount(context.get(), FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV));
  }
  if (!tree) {
    throw IoError("cannot make a tmpfs: {}", base::errno_text(errno));
  }
  return tree;
}

void make_read_only(int tree) {
  mount_attr change{};
  change.attr_set = MOUNT_ATTR_RDONLY;
  if (::mount_setattr(tree, "", AT_EMPTY_PATH | AT_RECURSIVE, &change, sizeof change) != 0) {
    throw IoError("cannot make a mount read-only: {}", base::errno_text(errno));
  }
}

base::UniqueFd open_in_root(int root, const std::string& path) {
  open_how how{};
  how.flags = O_PATH | O_CLOEXEC;
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
  base::UniqueFd fd(static_cast<int>(::syscall(SYS_openat2, root, path.c_str(), &how, sizeof how)));
  const bool is_unknown = !fd && (errno == ENOSYS || errno == EPERM);
  return is_unknown ? walk_in_root(root, path) : std::move(fd);
}

base::UniqueFd walk_in_root(int root, const std::string& path) {
  constexpr int kMaxLinks = 40;       // as the kernel's
  std::vector<base::UniqueFd> above;  // the folders that lead to where we are
  above.emplace_back(::openat(root, ".", O_PATH | O_CLOEXEC));
  std::string rest = path;
  for (int num_links = 0; above.back();) {
    const size_t begin = rest.find_first_not_of('/');
    if (begin == std::string::npos) {
      return std::move(above.back());
    }
    const size_t end = std::min(rest.find('/', begin), rest.size());
    const std::string name = rest.substr(begin, end - begin);
    rest.erase(0, end);
    if (name == ".") {
      continue;
    }
    if (name == "..") {
      above.resize(std::max<size_t>(1, above.size() - 1));
      continue;
    }
    base::UniqueFd next(
        ::openat(above.back().get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat info {};
    if (!next || ::fstat(next.get(), &info) != 0) {
      return {};
    }
    if (!S_ISLNK(info.st_mode)) {
      above.push_back(std::move(next));
      continue;
    }
    char target[PATH_MAX];
    const ssize_t size = ::readlinkat(next.get(), "", target, sizeof target);
    if (size < 0 || ++num_links > kMaxLinks) {
      errno = size < 0 ? errno : ELOOP;
      return {};
    }
    if (target[0] == '/') {
      above.resize(1);
    }
    rest.insert(0, std::string(target, static_cast<size_t>(size)));
  }
  return {};
}

void attach_tree(int tree, int place) {
  if (::move_mount(tree, "", place, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) != 0) {
    throw IoError("move_mount: {}", base::errno_text(errno));
  }
}

std::string path_in_root(const std::string& root, const std::string& path) {
  namespace fs = std::filesystem;
  const base::UniqueFd folder = base::open_file(root, O_PATH | O_DIRECTORY);
  fs::path found = fs::path("/" + path).lexically_normal();
  if (!found.has_filename()) {
    found = found.parent_path();
  }
  fs::path rest;
  for (;;) {
    if (const base::UniqueFd fd = open_in_root(folder.get(), found.string())) {
      const fs::path real = fs::read_symlink(fmt::format("/proc/self/fd/{}", fd.get()));
      // Who went on along such a link would end in the host's tree.
      if (!rest.empty() && fs::is_symlink(fs::symlink_status(real / *rest.begin()))) {
        throw IoError(
            "{} in {} is a link to something that is not there: {} leads to {}, which is looked up "
            "inside the root; make that first, or name another place",
            path, root, (found / *rest.begin()).string(),
            fs::read_symlink(real / *rest.begin()).string());
      }
      return rest.empty() ? real.string() : (real / rest).string();
    }
    if (!found.has_relative_path()) {
      throw IoError("cannot look up {} in {}: {}", path, root, base::errno_text(errno));
    }
    rest = rest.empty() ? found.filename() : found.filename() / rest;
    found = found.parent_path();
  }
}

}  // namespace lockstep::image
