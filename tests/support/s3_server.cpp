#include "support/s3_server.h"

#include <algorithm>
#include <filesystem>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"
#include "support/paths.h"

namespace lockstep::test {

namespace {

constexpr auto kPatience = std::chrono::seconds(30);

// Where tools/setup.sh --tests puts it, or the machine's own.
std::string server_program() {
  const std::string installed = testing_support::in_tree(".deps/rclone/rclone");
  return std::filesystem::exists(installed) ? installed : "rclone";
}

// What it says when it listens: "... Starting s3 server on [http://127.0.0.1:41234/]".
std::string endpoint_in(const std::string& log) {
  const size_t begin = std::min(log.find("[http://"), log.find("[https://"));
  const size_t end = log.find("/]", begin);
  return begin == std::string::npos || end == std::string::npos
             ? ""
             : log.substr(begin + 1, end - begin - 1);
}

}  // namespace

S3Server::S3Server(const std::string& folder, const S3ServerOptions& options) {
  const base::UniqueFd log(::memfd_create("rclone-log", MFD_CLOEXEC));
  std::vector<std::string> argv{
      server_program(),       "serve",  "s3",         "--config", "/dev/null", "--auth-key",
      key() + "," + secret(), "--addr", "127.0.0.1:0"};
  if (!options.certificate.empty()) {
    argv.insert(argv.end(), {"--cert", options.certificate, "--key", options.key});
  }
  if (options.has_virtual_hosts) {
    argv.emplace_back("--force-path-style=false");
  }
  argv.push_back(folder);
  process_ =
      base::Process({.argv = std::move(argv), .stdout_fd = log.get(), .stderr_fd = log.get()});
  std::string text;
  const base::Deadline deadline = base::Deadline::after(kPatience);
  while (endpoint_in(text).empty()) {
    if (process_.poll() || deadline.expired()) {
      throw IoError("rclone serve s3 did not start: {}", text);
    }
    ::poll(nullptr, 0, 5);
    char buffer[4096];
    const ssize_t n = ::pread(log.get(), buffer, sizeof buffer, 0);
    text.assign(buffer, static_cast<size_t>(std::max<ssize_t>(n, 0)));
  }
  endpoint_ = endpoint_in(text);
}

std::map<std::string, std::string> S3Server::env() const {
  return {{"AWS_ENDPOINT_URL", endpoint_},     {"AWS_ACCESS_KEY_ID", key()},
          {"AWS_SECRET_ACCESS_KEY", secret()}, {"LOCKSTEP_S3_TIMEOUT", "20"},
          {"AWS_CONFIG_FILE", "/dev/null"},    {"AWS_SHARED_CREDENTIALS_FILE", "/dev/null"}};
}

std::optional<std::string> s3_refusal() {
  static const auto refusal = []() -> std::optional<std::string> {
    try {
      const base::Output output = base::run_process({.argv = {server_program(), "version"}},
                                                    base::Deadline::after(kPatience));
      if (output.status.ok()) {
        return std::nullopt;
      }
      return fmt::format("rclone does not run: {}", output.err);
    } catch (const IoError& error) {
      return fmt::format("no S3 server here: {}; tools/setup.sh --tests brings it", error.what());
    }
  }();
  return refusal;
}

}  // namespace lockstep::test
