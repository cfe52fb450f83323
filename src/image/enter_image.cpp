#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/env.h"
#include "base/unique_fd.h"
#include "image/container.h"
#include "image/gpu_driver.h"
#include "image/mount_tree.h"
#include "image/squash_mount.h"
#include "image/squashfs.h"

namespace lockstep::image {

namespace {

namespace fs = std::filesystem;

// Where the new root is put together, on a tmpfs that only this mount namespace sees. What was
// there before is hidden from here on, so the host's side of every mount is taken first.
constexpr const char* kScratch = "/tmp";
constexpr const char* kImage = "/tmp/image";
constexpr const char* kSkeleton = "/tmp/skeleton";
constexpr const char* kRoot = "/tmp/root";

// A file system to put into the image, and where.
struct Piece {
  base::UniqueFd tree;
  std::string target;
  std::string name;         // for messages
  bool is_folder = true;    // or a single file
  bool optional = false;    // left out where the image has no place for it
  bool is_scratch = false;  // mount points in it may be made
  // Of an optional one, what a user should know where it is left out; empty if nothing.
  std::string loss = {};
};

void write_text(const std::string& path, const std::string& text) {
  const base::UniqueFd fd = base::open_file(path, O_WRONLY);
  base::write_all(fd.get(), text.data(), text.size());
}

// A mount namespace of our own; false if it took a user namespace, in which we are who we were but
// may mount only what the kernel lets ordinary users mount.
bool enter_mount_namespace() {
  const uid_t user = ::geteuid();
  const gid_t group = ::getegid();
  const bool by_right = ::unshare(CLONE_NEWNS) == 0;
  if (!by_right) {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
      throw IoError(
          "cannot enter an image: the system refuses a user namespace ({}); see the sysctls "
          "user.max_user_namespaces, kernel.unprivileged_userns_clone and "
          "kernel.apparmor_restrict_unprivileged_userns, run as root, or use another "
          "--container-runtime",
          base::errno_text(errno));
    }
    write_text("/proc/self/setgroups", "deny");
    write_text("/proc/self/uid_map", fmt::format("{} {} 1", user, user));
    write_text("/proc/self/gid_map", fmt::format("{} {} 1", group, group));
  }
  // Slave: later mounts of the host (an automounted home) still appear, ours never leak out.
  if (::mount("none", "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0) {
    throw IoError("cannot enter an image: make / a slave mount: {}", base::errno_text(errno));
  }
  return by_right;
}

std::vector<Piece> system_pieces() {
  std::vector<Piece> pieces;
  for (const char* path : {"/proc", "/sys", "/dev"}) {
    pieces.push_back({.tree = clone_tree(path), .target = path, .name = path});
  }
  make_read_only(pieces[1].tree.get());
  for (const auto& [path, mode] : {std::pair{"/tmp", "1777"}, std::pair{"/run", "755"}}) {
    pieces.push_back({.tree = new_tmpfs(mode), .target = path, .name = path, .is_scratch = true});
  }
  for (const char* path : {"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"}) {
    if (::access(path, R_OK) == 0) {
      pieces.push_back({.tree = clone_tree(path),
                        .target = path,
                        .name = path,
                        .is_folder = false,
                        .optional = true});
      make_read_only(pieces.back().tree.get());
    }
  }
  return pieces;
}

// The driver's libraries, read-only, and the folders of its services, all in the new /run and /tmp.
std::vector<Piece> gpu_pieces(const GpuDriver& driver) {
  std::vector<Piece> pieces;
  for (const DriverLibrary& library : driver.libraries) {
    pieces.push_back({.tree = clone_tree(library.source),
                      .target = fmt::format("{}/{}", kDriverFolder, library.name),
                      .name = library.source,
                      .is_folder = false});
    make_read_only(pieces.back().tree.get());
  }
  for (const std::string& folder : driver.services) {
    pieces.push_back({.tree = clone_tree(folder),
                      .target = folder,
                      .name = folder,
                      .optional = true,
                      .loss = "programs in the image cannot speak with the service of the GPU that "
                              "listens there (without MPS, ranks take turns on a GPU, and where it "
                              "takes one process only all but one fail)"});
  }
  return pieces;
}

// What the variable names is brought along, unless it is no folder that has one meaning everywhere.
void check_mps(const GpuDriver& driver) {
  const auto folder = base::Env().text("CUDA_MPS_PIPE_DIRECTORY");
  if (folder &&
      std::find(driver.services.begin(), driver.services.end(), *folder) == driver.services.end()) {
    log::warn("image",
              "CUDA_MPS_PIPE_DIRECTORY={} stays outside the image, so programs in it do not find "
              "MPS: it is not the absolute path of a folder on this host; set it to that",
              *folder);
  }
}

// A job without a GPU runs, whatever the driver's files are on.
void add_gpu_pieces(std::vector<Piece>& pieces) {
  const auto driver = host_gpu_driver();
  if (!driver) {
    return;
  }
  check_mps(*driver);
  try {
    for (Piece& piece : gpu_pieces(*driver)) {
      pieces.push_back(std::move(piece));
    }
  } catch (const IoError& error) {
    log::warn("image",
              "the GPU driver stays outside the image, so programs in it find no GPU: {}; install "
              "the driver's libraries on a local file system, or set LOCKSTEP_DEVICE=cpu if the "
              "job wants no GPU",
              error.what());
  }
}

std::vector<Piece> all_pieces(const std::vector<Mount>& mounts) {
  std::vector<Piece> pieces = system_pieces();
  add_gpu_pieces(pieces);
  for (const Mount& mount : mounts) {
    struct stat info {};
    if (::stat(mount.source.c_str(), &info) != 0) {
      throw UsageError("--mount {}: the source {}: {}", to_text(mount), mount.source,
                       base::errno_text(errno));
    }
    pieces.push_back({.tree = clone_tree(mount.source),
                      .target = mount.target,
                      .name = "--mount " + to_text(mount),
                      .is_folder = S_ISDIR(info.st_mode)});
    if (mount.read_only) {
      make_read_only(pieces.back().tree.get());
    }
  }
  return pieces;
}

// The piece, of those before `end`, whose target `path` lies in; the last one hides the others.
const Piece* enclosing(const std::vector<Piece>& pieces, size_t end, const std::string& path) {
  for (size_t i = end; i-- > 0;) {
    if (path.starts_with(pieces[i].target + "/")) {
      return &pieces[i];
    }
  }
  return nullptr;
}

// Makes `path` below `base`, and the folders above it.
void make_point(const std::string& base, const std::string& path, bool is_folder) {
  fs::path made = base;
  for (const fs::path& part : fs::path(path).relative_path()) {
    made /= part;
    if (made == fs::path(base + path) && !is_folder) {
      base::open_file(made.string(), O_WRONLY | O_CREAT);
    } else if (::mkdir(made.c_str(), 0755) == 0) {
      ::chmod(made.c_str(), 0755);  // whatever the umask is
    }
  }
}

// The image's own root or, if it lacks mount points, one with them laid over it.
std::string make_root(const std::vector<Piece>& pieces) {
  const base::UniqueFd image = base::open_file(kImage, O_PATH | O_DIRECTORY);
  std::string missing;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    if (piece.optional || open_in_root(image.get(), piece.target) ||
        enclosing(pieces, i, piece.target) != nullptr) {
      continue;
    }
    const std::string place = path_in_root(kImage, piece.target).substr(std::string(kImage).size());
    make_point(kSkeleton, place, piece.is_folder);
    missing = piece.target;
  }
  if (missing.empty()) {
    return kImage;
  }
  const std::string layers = fmt::format("lowerdir={}:{}", kSkeleton, kImage);
  if (::mount("overlay", kRoot, "overlay", MS_RDONLY | MS_NODEV | MS_NOSUID, layers.c_str()) != 0) {
    throw IoError(
        "the image has no {0} to mount on, and this kernel lays nothing over it (overlay: {1}): "
        "build the image with lockstep image build --mkdir {0}",
        missing, base::errno_text(errno));
  }
  return kRoot;
}

base::UniqueFd open_place(int root, const std::vector<Piece>& pieces, size_t index) {
  const Piece& piece = pieces[index];
  base::UniqueFd place = open_in_root(root, piece.target);
  const Piece* outer = enclosing(pieces, index, piece.target);
  if (!place && outer != nullptr && outer->is_scratch) {
    const base::UniqueFd folder = open_in_root(root, outer->target);
    make_point(fmt::format("/proc/self/fd/{}", folder.get()),
               piece.target.substr(outer->target.size()), piece.is_folder);
    place = open_in_root(root, piece.target);
  }
  return place;
}

void attach_pieces(const std::string& root_path, const std::vector<Piece>& pieces) {
  const base::UniqueFd root = base::open_file(root_path, O_PATH | O_DIRECTORY);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const base::UniqueFd place = open_place(root.get(), pieces, i);
    if (!place && pieces[i].optional) {
      if (!pieces[i].loss.empty()) {
        log::warn("image",
                  "{0} stays outside: the image has no {0} to mount it on; {1}. Build the "
                  "image with `lockstep image build --mkdir {0}`, or have that folder in /tmp or "
                  "/run, which are new in each job",
                  pieces[i].target, pieces[i].loss);
      }
      continue;
    }
    if (!place) {
      throw UsageError("{}: there is no {} to mount on: {}; make it first", pieces[i].name,
                       pieces[i].target, base::errno_text(errno));
    }
    try {
      attach_tree(pieces[i].tree.get(), place.get());
    } catch (const IoError& error) {
      throw IoError("{}: cannot mount it on {} in the image: {}", pieces[i].name, pieces[i].target,
                    error.what());
    }
  }
}

void switch_root(const std::string& root) {
  // The old root lands on the new one and is taken off: no folder of the image is needed for it.
  if (::chdir(root.c_str()) != 0 || ::syscall(SYS_pivot_root, ".", ".") != 0 ||
      ::umount2(".", MNT_DETACH) != 0 || ::chdir("/") != 0) {
    throw IoError("cannot enter the image: pivot_root: {}", base::errno_text(errno));
  }
}

}  // namespace

void enter_image(const ContainerOptions& options) {
  read_squashfs(options.image);
  const base::UniqueFd file = base::open_file(options.image, O_RDONLY);
  std::error_code ignored;
  const fs::path folder = fs::current_path(ignored);
  const bool by_right = enter_mount_namespace();
  const std::vector<Piece> pieces = all_pieces(options.mounts);
  if (::mount("tmpfs", kScratch, "tmpfs", MS_NODEV | MS_NOSUID, "mode=755") != 0) {
    throw IoError("cannot enter an image: mount a tmpfs on {}: {}", kScratch,
                  base::errno_text(errno));
  }
  for (const char* path : {kImage, kSkeleton, kRoot}) {
    ::mkdir(path, 0755);
  }
  mount_squashfs(
      {.image_fd = file.get(), .image = options.image, .folder = kImage, .kernel_may = by_right});
  const std::string root = make_root(pieces);
  attach_pieces(root, pieces);
  switch_root(root);
  fs::current_path(folder, ignored);
  ::setenv("PATH", image_search_path().c_str(), 1);
}

}  // namespace lockstep::image
