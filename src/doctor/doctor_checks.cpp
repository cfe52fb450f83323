#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <fcntl.h>
#include <sstream>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/deadline.h"
#include "base/env.h"
#include "base/process/cpu_quota.h"
#include "base/process/process.h"
#include "base/unique_fd.h"
#include "doctor/doctor.h"

namespace lockstep::doctor {

namespace {

constexpr int kMinCompiler = 12;
constexpr uint64_t kMinOpenFiles = 4096;
constexpr uint64_t kManyOpenFiles = 65536;
constexpr uint64_t kMinProcesses = 4096;
constexpr uint64_t kMinSharedMemory = 1ull << 30;
constexpr auto kToolTimeout = std::chrono::seconds(30);

// The output of a tool, or nothing if it cannot be started or fails; `why` then says why.
std::optional<std::string> ask(const std::vector<std::string>& argv, std::string& why) {
  try {
    const base::Output output =
        base::run_process({.argv = argv}, base::Deadline::after(kToolTimeout));
    if (output.status.ok()) {
      return output.out;
    }
    why = output.err.empty() ? output.status.text() : output.err.substr(0, output.err.find('\n'));
  } catch (const Error& error) {
    why = error.what();
  }
  return std::nullopt;
}

std::optional<std::string> read_text(const std::string& path) {
  try {
    return base::read_file(path);
  } catch (const IoError&) {
    return std::nullopt;
  }
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (!line.empty()) {
      lines.push_back(line);
    }
  }
  return lines;
}

double gib(uint64_t bytes) {
  return static_cast<double>(bytes) / (1u << 30);
}

// Why there is no sealed anonymous memory; empty if there is.
std::string memfd_refusal() {
  const base::UniqueFd fd(::memfd_create("lockstep-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ::ftruncate(fd.get(), 4096) != 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return base::errno_text(errno);
  }
  return "";
}

}  // namespace

CheckResult check_compiler(const std::string& program) {
  CheckResult result{.name = "compiler"};
  std::string why;
  const auto version = ask({program, "-dumpfullversion"}, why);
  if (!version) {
    result.status = CheckStatus::Note;
    result.found = why;
    result.fix = "only building needs one: apt-get install g++";
    return result;
  }
  const std::string text = version->substr(0, version->find('\n'));
  result.found = fmt::format("{} {}", program, text);
  const auto major = base::parse_integer(text.substr(0, text.find('.')), 0, 1000);
  if (!major || *major < kMinCompiler) {
    result.status = CheckStatus::Problem;
    result.fix = fmt::format("lockstep is C++20: use g++ {} or newer", kMinCompiler);
  }
  return result;
}

std::vector<CheckResult> check_torch(const std::string& program) {
  CheckResult torch{.name = "libtorch"};
  CheckResult gloo{.name = "Gloo"};
  std::string why;
  const bool exists = ::access(program.c_str(), X_OK) == 0;
  const auto answer = exists ? ask({program, "--version"}, why) : std::nullopt;
  if (!answer) {
    torch.status = CheckStatus::Problem;
    gloo.status = CheckStatus::Note;
    torch.found = exists ? fmt::format("{} does not start: {}", program, why)
                         : fmt::format("{} is missing", program);
    torch.fix = exists
                    ? "is libtorch where it was when lockstep was built? `make setup` puts it back"
                    : "`lockstep train` and `lockstep explain` need it: make setup && make build";
    gloo.found = "unknown: it is inside libtorch";
    return {torch, gloo};
  }
  gloo.status = CheckStatus::Problem;
  gloo.found = "this libtorch says nothing of Gloo";
  gloo.fix = "ranks on different hosts need it: use a libtorch built with USE_GLOO";
  for (const std::string& line : lines_of(*answer)) {
    std::string lower = line;
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    if (lower.find("gloo") != std::string::npos) {
      gloo = {.name = "Gloo", .found = line};
    } else {
      torch.found += torch.found.empty() ? line : ", " + line;
    }
  }
  return {torch, gloo};
}

CheckResult check_cuda_toolkit(const std::string& program) {
  CheckResult result{.name = "CUDA toolkit"};
  std::string why;
  const auto answer = ask({program, "--version"}, why);
  result.found = "none: fine, only building the GPU plug-in needs it";
  if (answer) {
    for (const std::string& line : lines_of(*answer)) {
      if (line.find("release") != std::string::npos) {
        result.found = line;
      }
    }
  }
  return result;
}

CheckResult check_shared_memory(const std::string& folder) {
  CheckResult result{.name = "shared memory"};
  const std::string refusal = memfd_refusal();
  if (!refusal.empty()) {
    result.status = CheckStatus::Problem;
    result.found = fmt::format("memfd_create with sealing: {}", refusal);
    result.fix =
        "ranks of one host share memory by it: use Linux 4.14 or newer, and let seccomp pass it";
    return result;
  }
  struct statvfs info {};
  if (::statvfs(folder.c_str(), &info) != 0) {
    result.status = CheckStatus::Note;
    result.found = fmt::format("memfd works; {}: {}", folder, base::errno_text(errno));
    result.fix = "lockstep needs no /dev/shm, but NCCL and Python's loaders do";
    return result;
  }
  const uint64_t total = uint64_t{info.f_blocks} * info.f_frsize;
  const uint64_t free = uint64_t{info.f_bavail} * info.f_frsize;
  result.found =
      fmt::format("memfd works; {}: {:.1f} GiB, {:.1f} free", folder, gib(total), gib(free));
  if (::access(folder.c_str(), W_OK) != 0) {
    result.status = CheckStatus::Note;
    result.found += fmt::format("; it cannot be written to: {}", base::errno_text(errno));
    result.fix = fmt::format(
        "lockstep needs no /dev/shm, but NCCL and Python's loaders do: mount -o remount,rw {}, or "
        "start the container with one that is writable (docker: no --read-only, or --tmpfs {})",
        folder, folder);
  } else if (free < kMinSharedMemory) {
    result.status = CheckStatus::Note;
    result.fix = "lockstep needs no /dev/shm, but NCCL does: docker run --shm-size=8g";
  }
  return result;
}

CheckResult check_cores(const std::string& root, int num_affine) {
  CheckResult result{.name = "cores"};
  result.found = fmt::format("{} by affinity", num_affine);
  const auto limit = base::cgroup_cpu_limit(root);
  if (limit) {
    result.found += fmt::format(", {:.2g} by the cgroup's quota", *limit);
    if (*limit < num_affine) {
      result.status = CheckStatus::Note;
      result.fix = fmt::format(
          "more than {:.0f} busy threads are throttled: set OMP_NUM_THREADS, or raise "
          "the quota (docker --cpus)",
          std::max(1.0, std::floor(*limit)));
    }
  }
  return result;
}

CheckResult check_memory(const std::string& root) {
  CheckResult result{.name = "memory"};
  unsigned long long total_kib = 0, available_kib = 0;
  for (const std::string& line : lines_of(read_text(root + "/proc/meminfo").value_or(""))) {
    std::sscanf(line.c_str(), "MemTotal: %llu", &total_kib);
    std::sscanf(line.c_str(), "MemAvailable: %llu", &available_kib);
  }
  if (total_kib == 0) {
    return {.name = "memory", .status = CheckStatus::Note, .found = "cannot read /proc/meminfo"};
  }
  result.found =
      fmt::format("{:.1f} GiB, {:.1f} available", gib(total_kib << 10), gib(available_kib << 10));
  if (gib(available_kib << 10) < 1.0) {
    result.status = CheckStatus::Note;
    result.fix = "each rank of a libtorch program needs some 0.3 GiB before its model";
  }
  return result;
}

CheckResult check_open_files(uint64_t soft_limit, uint64_t hard_limit) {
  CheckResult result{.name = "open files"};
  const auto text = [](uint64_t n) { return n == RLIM_INFINITY ? "unlimited" : std::to_string(n); };
  result.found = fmt::format("{} (at most {})", text(soft_limit), text(hard_limit));
  if (soft_limit < kMinOpenFiles) {
    result.status = CheckStatus::Note;
    result.fix = "loaders and many ranks need more: ";
    if (hard_limit > soft_limit) {
      result.fix += fmt::format("ulimit -n {}", std::min<uint64_t>(hard_limit, kManyOpenFiles));
    }
    if (hard_limit < kMinOpenFiles) {  // what a user can reach alone is not enough
      result.fix += fmt::format(
          "{0}the hard limit is {1}, which only root raises: \"* hard nofile {2}\" in "
          "/etc/security/limits.conf and a new login, LimitNOFILE={2} of a systemd unit, docker "
          "run "
          "--ulimit nofile={2}",
          hard_limit > soft_limit ? "; " : "", hard_limit, kManyOpenFiles);
    }
  }
  return result;
}

CheckResult check_processes(uint64_t soft_limit) {
  CheckResult result{.name = "processes"};
  result.found = soft_limit == RLIM_INFINITY ? "unlimited" : std::to_string(soft_limit);
  if (soft_limit < kMinProcesses) {
    result.status = CheckStatus::Note;
    result.fix = "threads count too (each rank has dozens): raise ulimit -u";
  }
  return result;
}

CheckResult check_host_name(const std::string& name, const std::vector<std::string>& addresses,
                            const std::string& error) {
  CheckResult result{.name = "host name"};
  if (addresses.empty()) {
    result.status = CheckStatus::Problem;
    result.found = fmt::format("{} does not resolve: {}", name, error);
    result.fix = fmt::format(
        "Gloo needs it: add this host's address and \"{}\" to /etc/hosts, or set "
        "GLOO_SOCKET_IFNAME",
        name);
    return result;
  }
  result.found = fmt::format("{} is {}", name, fmt::join(addresses, ", "));
  const bool only_loopback =
      std::all_of(addresses.begin(), addresses.end(),
                  [](const std::string& a) { return a.starts_with("127.") || a == "::1"; });
  if (only_loopback) {
    result.status = CheckStatus::Note;
    result.fix = fmt::format(
        "fine on one host; with several, ranks tell the others a loopback address and "
        "all time out: give {} its real address in /etc/hosts, or set "
        "GLOO_SOCKET_IFNAME",
        name);
  }
  return result;
}

CheckResult check_isolation(const std::optional<std::string>& refusal) {
  CheckResult result{.name = "isolation"};
  result.found = "pidns: the kernel ends whatever a job leaves behind";
  if (refusal) {
    result.found = fmt::format("guardian: no PID namespace ({})", *refusal);
    result.fix = "fine; as root, `lockstep run` would let the kernel do it";
  }
  return result;
}

}  // namespace lockstep::doctor
