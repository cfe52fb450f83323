#include "launch/node/stage.h"

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/network.h"
#include "base/process/fork.h"
#include "base/process/process.h"
#include "image/image.h"
#include "launch/node/poll_set.h"
#include "storage/fetch.h"
#include "storage/location.h"

namespace lockstep::launch {

namespace {

namespace fs = std::filesystem;

constexpr int kUsageCode = 2;
constexpr auto kStopTime = std::chrono::seconds(5);

std::string bytes_text(uint64_t bytes) {
  constexpr double kMega = 1e6;
  constexpr double kGiga = 1e9;
  const auto value = static_cast<double>(bytes);
  return value >= kGiga ? fmt::format("{:.2f} GB", value / kGiga)
                        : fmt::format("{:.2f} MB", value / kMega);
}

std::string bring(const StageOptions& options, storage::UnfinishedFiles& unfinished) {
  const auto begin = base::Clock::now();
  storage::FetchReport all;
  for (const StageItem& item : options.items) {
    const storage::FetchReport one =
        storage::fetch(item.source, item.destination, {.unfinished = &unfinished});
    all.num_files += one.num_files;
    all.num_skipped += one.num_skipped;
    all.bytes_copied += one.bytes_copied;
  }
  return fmt::format("staged {} file{} ({}) on {} in {}; {} already there", all.num_files,
                     all.num_files == 1 ? "" : "s", bytes_text(all.bytes_copied), base::host_name(),
                     base::to_text(base::Clock::now() - begin), all.num_skipped);
}

StageResult result_of(const std::function<std::string()>& work) {
  try {
    return {.code = 0, .text = work()};
  } catch (const std::exception& error) {
    const bool is_usage = dynamic_cast<const UsageError*>(&error) != nullptr;
    return {.code = is_usage ? kUsageCode : 1,
            .text = fmt::format("cannot stage on {}: {}", base::host_name(), error.what())};
  }
}

// The child's body: a thread works while this one waits for the order to end.
int run_stager(const StageOptions& options, int report_fd) {
  sigset_t stop;
  ::sigemptyset(&stop);
  ::sigaddset(&stop, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &stop, nullptr);
  const base::UniqueFd stop_fd(::signalfd(-1, &stop, SFD_CLOEXEC));
  storage::UnfinishedFiles unfinished;
  base::FdPair done = base::make_pipe();
  StageResult result;
  std::thread worker([&] {
    result = result_of([&] { return bring(options, unfinished); });
    done.write.reset();
  });
  PollSet polls;
  polls.add(stop_fd.get());
  const auto end_of_work = polls.add(done.read.get());
  while (!polls.wait(base::Deadline::never())) {
  }
  if (!polls.is_ready(end_of_work)) {
    unfinished.delete_all();
    ::_exit(128 + SIGTERM);  // the transfer ends with it
  }
  worker.join();
  if (result.code == 0 && options.container) {
    const StageResult checked = result_of([&] {
      image::check_image(*options.container, options.program);
      return std::string();
    });
    result = checked.code == 0 ? result : checked;
  }
  base::write_all(report_fd, result.text.data(), result.text.size());
  return result.code;
}

}  // namespace

StageItem parse_stage(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || text.substr(colon).starts_with("://")) {
    throw UsageError("--stage {} names no destination; write SRC:DST", text);
  }
  StageItem item{.source = text.substr(0, colon), .destination = text.substr(colon + 1)};
  if (item.source.empty() || item.destination.empty()) {
    throw UsageError("--stage {}: the {} is missing; write SRC:DST", text,
                     item.source.empty() ? "source, before the last colon,"
                                         : "destination, after the last colon,");
  }
  const storage::Location place = storage::parse_location(item.source);
  if (!place.is_s3) {
    item.source = fs::absolute(place.path).lexically_normal().string();
  }
  item.destination = fs::absolute(item.destination).lexically_normal().string();
  return item;
}

StageItem stage_image(const std::string& location, const base::Env& env) {
  const storage::Location place = storage::parse_location(location);
  storage::check_relative(place.path, location);
  std::string cache = env.text("LOCKSTEP_CACHE_DIR").value_or("");
  if (const auto base = env.text("XDG_CACHE_HOME"); cache.empty() && base) {
    cache = *base + "/lockstep";
  }
  if (const auto home = env.text("HOME"); cache.empty() && home) {
    cache = *home + "/.cache/lockstep";
  }
  if (cache.empty()) {
    throw UsageError("--image {}: neither LOCKSTEP_CACHE_DIR nor HOME says where to keep it",
                     location);
  }
  const fs::path kept = fs::path(cache) / "images" / place.bucket / place.path;
  return {.source = location, .destination = fs::absolute(kept).lexically_normal().string()};
}

Stager::Stager(const StageOptions& options) {
  base::FdPair report = base::make_pipe();
  const pid_t leader = ::getpid();
  const int report_fd = report.write.get();
  pid_ = base::fork_child([&] {
    base::die_with_parent(leader);
    base::close_all_except({report_fd});
    return run_stager(options, report_fd);
  });
  report_ = std::move(report.read);
  ::fcntl(report_.get(), F_SETFL, O_NONBLOCK);
}

Stager::~Stager() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

void Stager::stop() noexcept {
  if (pid_ > 0 && kill_at_.is_never()) {
    ::kill(pid_, SIGTERM);
    kill_at_ = base::Deadline::after(kStopTime);
  }
}

std::optional<StageResult> Stager::serve() {
  char buffer[4096];
  for (;;) {
    const ssize_t n = ::read(report_.get(), buffer, sizeof buffer);
    if (n < 0 && kill_at_.expired()) {
      // A file system that does not answer holds it in the kernel: nobody can wait for that.
      ::kill(pid_, SIGKILL);
      return StageResult{.code = 1,
                         .text = fmt::format("cannot end the staging on {} (pid {})",
                                             base::host_name(), std::exchange(pid_, -1))};
    }
    if (n < 0) {
      return std::nullopt;  // nothing more now
    }
    if (n == 0) {
      break;
    }
    text_.append(buffer, static_cast<size_t>(n));
  }
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  const base::ExitStatus end = base::ExitStatus::from_wait(status);
  if (text_.empty()) {
    text_ = fmt::format("cannot stage on {}: it was stopped ({})", base::host_name(), end.text());
  }
  return StageResult{.code = end.shell_code(), .text = text_};
}

}  // namespace lockstep::launch
