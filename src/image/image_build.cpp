#include "image/image_build.h"

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <sys/file.h>
#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/unique_fd.h"
#include "image/image_root.h"
#include "image/squashfs.h"
#include "image/tools.h"

namespace lockstep::image {

namespace {

namespace fs = std::filesystem;

constexpr const char* kSuite = "bookworm";
constexpr const char* kDefaultFolder = "/usr/local/bin/";
constexpr const char* kCertificates = "/etc/ssl/certs/ca-certificates.crt";

// OUTPUT.build: what the image is made of, gone when the build ends.
class BuildFolder {
 public:
  explicit BuildFolder(const std::string& output) : path_(output + ".build") {
    fs::create_directories(path_);
    lock_ = base::open_file(path_, O_RDONLY | O_DIRECTORY);
    if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
      path_.clear();  // it is not ours to remove
      throw UsageError("another build of {} is running", output);
    }
    for (const auto& item : fs::directory_iterator(path_)) {  // of a build that was killed
      fs::remove_all(item);
    }
    fs::create_directory(root());
  }

  ~BuildFolder() {
    std::error_code error;
    if (!path_.empty()) {
      fs::remove_all(path_, error);
    }
    if (error) {
      log::warn("image", "cannot remove {}: {}", path_, error.message());
    }
  }

  BuildFolder(const BuildFolder&) = delete;
  BuildFolder& operator=(const BuildFolder&) = delete;

  std::string root() const { return path_ + "/root"; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
  base::UniqueFd lock_;
};

void tell(const ImageBuildOptions& options, const std::string& line) {
  if (options.progress) {
    options.progress(line);
  }
}

std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) {
    result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return result + "'";
}

void check_options(const ImageBuildOptions& options) {
  if (options.from.empty() == !options.debian) {
    throw UsageError("say what the image is made of: --from DIR or --debian");
  }
  if (!options.from.empty() && !fs::is_directory(options.from)) {
    throw UsageError("--from {} is not a folder", options.from);
  }
  if (!options.requirements.empty() && !options.debian) {
    throw UsageError("--python needs --debian, whose Python and pip it uses");
  }
  if (!options.requirements.empty() && ::access(options.requirements.c_str(), R_OK) != 0) {
    throw UsageError("--python {}: {}", options.requirements, base::errno_text(errno));
  }
  for (const std::string& folder : options.folders) {
    if (!folder.starts_with('/') || folder.find("/../") != std::string::npos) {
      throw UsageError("--mkdir {} is not an absolute path", folder);
    }
  }
  if (fs::is_directory(options.output)) {
    throw UsageError("--output {} is a folder; name a file, like job.sqsh", options.output);
  }
  if (fs::exists(options.output) && !options.force) {
    throw UsageError("{} exists; --force replaces it", options.output);
  }
  const fs::path above = fs::absolute(options.output).parent_path();
  if (!fs::is_directory(above)) {
    throw UsageError("--output {}: there is no folder {}", options.output, above.string());
  }
}

// The host's own package sources, if it is the same Debian.
std::vector<std::string> debian_sources() {
  const bool is_same = base::read_file("/etc/os-release").find(kSuite) != std::string::npos;
  for (const char* path : {"/etc/apt/sources.list", "/etc/apt/sources.list.d/debian.sources"}) {
    std::error_code error;
    if (is_same && fs::file_size(path, error) > 0 && !error) {
      return {path};
    }
  }
  return {};
}

// Python and what pip installs, while the root is still that of a running Debian.
std::vector<std::string> python_arguments(const std::string& requirements) {
  constexpr const char* kUploaded = "/tmp/lockstep-requirements.txt";
  std::string pip = "python3 -m pip";
  std::vector<std::string> arguments{
      "--include=python3,python3-pip,ca-certificates",
      fmt::format("--customize-hook=upload {} {}", quoted(requirements), kUploaded)};
  std::string unwanted = kUploaded;
  if (fs::exists(kCertificates)) {
    // pip trusts whom this host trusts, a company's own proxy included.
    constexpr const char* kTrusted = "/tmp/lockstep-certificates.crt";
    arguments.push_back(fmt::format("--customize-hook=upload {} {}", kCertificates, kTrusted));
    // By the variable too, which one of this host's environment would otherwise win over.
    pip = fmt::format("env REQUESTS_CA_BUNDLE={0} {1} --cert {0}", kTrusted, pip);
    unwanted += fmt::format(" {}", kTrusted);
  }
  arguments.push_back(fmt::format(
      "--customize-hook=chroot \"$1\" {} install --no-cache-dir --break-system-packages -r {} >&2",
      pip, kUploaded));
  arguments.push_back(fmt::format("--customize-hook=chroot \"$1\" rm {}", unwanted));
  return arguments;
}

void make_debian(const ImageBuildOptions& options, const BuildFolder& build) {
  // By way of an archive: as an ordinary user, mmdebstrap's files belong to users that only its
  // namespace has, and nobody outside could pack or remove them.
  const std::string archive = build.file("root.tar");
  std::vector<std::string> argv{"mmdebstrap", "--quiet", "--variant=minbase"};
  if (!options.requirements.empty()) {
    const auto python = python_arguments(fs::absolute(options.requirements).string());
    argv.insert(argv.end(), python.begin(), python.end());
  }
  argv.insert(argv.end(), {kSuite, archive});
  const auto sources = debian_sources();
  argv.insert(argv.end(), sources.begin(), sources.end());
  run_tool({.argv = argv, .package = "mmdebstrap", .task = "make a Debian root"});
  run_tool({.argv = {"tar", "--extract", "--file=" + archive, "--directory=" + build.root(),
                     "--no-same-owner", "--exclude=./dev/*"},
            .package = "tar",
            .task = "unpack the Debian root"});
  fs::remove(archive);
}

void make_root(const ImageBuildOptions& options, const BuildFolder& build) {
  if (options.debian) {
    tell(options, fmt::format("making a Debian root ({}){}", kSuite,
                              options.requirements.empty() ? "" : " with Python"));
    make_debian(options, build);
  } else {
    tell(options, fmt::format("copying {}", options.from));
    run_tool({.argv = {"cp", "-a", "--reflink=auto", options.from + "/.", build.root()},
              .package = "coreutils",
              .task = fmt::format("copy {}", options.from)});
  }
  ImageRoot root(build.root(), options.libraries);
  root.furnish();
  for (const std::string& folder : options.folders) {
    root.add_folder(folder);
  }
  for (const ImageAddition& addition : options.additions) {
    tell(options, fmt::format("adding {} as {}", addition.source, addition.target));
    root.add(addition);
  }
  if (const std::string shell = root.add_shell(); !shell.empty()) {
    tell(options, fmt::format("adding a shell: {} of this host", shell));
  }
}

void pack(const ImageBuildOptions& options, const BuildFolder& build) {
  const std::string partial = options.output + ".partial";
  tell(options, fmt::format("packing {}", options.output));
  try {
    run_tool({.argv = {"mksquashfs", build.root(), partial, "-all-root", "-comp", "zstd",
                       "-noappend", "-quiet", "-no-progress"},
              .package = "squashfs-tools",
              .task = fmt::format("pack {}", options.output)});
    read_squashfs(partial);
    fs::rename(partial, options.output);
  } catch (const std::exception&) {
    std::error_code ignored;
    fs::remove(partial, ignored);
    throw;
  }
}

}  // namespace

ImageAddition parse_addition(const std::string& text) {
  const size_t colon = text.find(':');
  std::string source = text.substr(0, colon);
  std::string target = colon == std::string::npos ? kDefaultFolder : text.substr(colon + 1);
  if (source.empty() || !target.starts_with('/')) {
    throw UsageError("--add {}: write PROGRAM or PROGRAM:DST, with an absolute path DST", text);
  }
  if (source.find('/') == std::string::npos && !fs::exists(source)) {
    const std::string found = find_tool(source);
    source = found.empty() ? source : found;
  }
  if (!fs::exists(source)) {
    throw UsageError("--add {}: there is no {}, and no such program in PATH", text, source);
  }
  if (!fs::is_directory(source) && ::access(source.c_str(), R_OK) != 0) {
    throw UsageError("--add {}: {}", text, base::errno_text(errno));
  }
  if (target.ends_with('/')) {
    const fs::path normal = fs::absolute(source).lexically_normal();
    target += (normal.has_filename() ? normal : normal.parent_path()).filename().string();
  }
  return {.source = source, .target = target};
}

void build_image(const ImageBuildOptions& options) {
  check_options(options);
  // Before the long part of the work.
  if (find_tool("mksquashfs").empty()) {
    throw UsageError(
        "cannot pack an image: mksquashfs is not installed; apt-get install "
        "squashfs-tools");
  }
  try {
    const BuildFolder build(options.output);
    make_root(options, build);
    pack(options, build);
  } catch (const fs::filesystem_error& error) {
    throw IoError("cannot build {}: {}: {}", options.output, error.path1().string(),
                  error.code() == std::errc::no_space_on_device ? "the disk is full"
                                                                : error.code().message());
  }
}

}  // namespace lockstep::image
