#include "launch/job/starter.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "base/process/process.h"
#include "base/unique_fd.h"

namespace lockstep::launch {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RemoteJob, arguments, endpoint, job_id, secret, node_rank,
                                   num_nodes, procs_per_node, folder, environment)

namespace {

using Json = nlohmann::json;

constexpr size_t kMaxJobBytes = 16u << 20;
constexpr auto kSshMargin = std::chrono::seconds(5);

// Byte by byte: what follows the line is not ours to take.
std::string read_line(int fd) {
  std::string line;
  for (char byte = 0; line.size() < kMaxJobBytes;) {
    const ssize_t n = ::read(fd, &byte, 1);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n <= 0) {
      throw UsageError(
          "--join is for `lockstep run --hosts`, which tells it a job on standard input");
    }
    if (byte == '\n') {
      return line;
    }
    line.push_back(byte);
  }
  throw FormatError("a job of more than {} bytes on standard input", kMaxJobBytes);
}

}  // namespace

std::string RemoteJob::to_json() const {
  return Json(*this).dump();
}

RemoteJob RemoteJob::from_json(const std::string& line) try {
  return Json::parse(line);
} catch (const Json::exception& error) {
  throw FormatError("the job on standard input cannot be read: {}", error.what());
}

RemoteJob receive_remote_job() {
  const RemoteJob job = RemoteJob::from_json(read_line(STDIN_FILENO));
  std::error_code error;
  std::filesystem::current_path(job.folder, error);
  if (error) {
    throw UsageError(
        "this host has no folder {} ({}): the job was started there; start it from one that all "
        "hosts share",
        job.folder, error.message());
  }
  for (const auto& [name, value] : job.environment) {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  return job;
}

namespace {

// The job notices a lost host by its own heartbeats; ssh must not give up before.
remote::SshOptions patient_ssh(std::chrono::nanoseconds lost_after) {
  remote::SshOptions ssh = remote::SshOptions::from_env(base::Env());
  ssh.alive_timeout =
      std::max(ssh.alive_timeout, std::chrono::ceil<std::chrono::seconds>(lost_after + kSshMargin));
  return ssh;
}

}  // namespace

Starter::Starter(const LaunchOptions& options, const RemoteJob& job, base::ConsoleBoard& board)
    : nodes_({.program = base::own_program(),
              .ssh = patient_ssh(options.rendezvous.lost_after),
              .board = &board}) {
  RemoteJob next = job;
  for (const remote::HostEntry& host : options.hosts) {
    next.procs_per_node = host.slots;
    nodes_.start(host, next.to_json());
    ++next.node_rank;
  }
}

void Starter::add_polls(std::vector<pollfd>& polls) {
  first_poll_ = polls.size();
  nodes_.add_polls(polls);
  num_polls_ = polls.size() - first_poll_;
}

std::optional<std::string> Starter::serve(const std::vector<pollfd>& polls) {
  std::optional<std::string> failure;
  for (const remote::RemoteEnd& end :
       nodes_.handle(std::span(polls).subspan(first_poll_, num_polls_))) {
    if (!failure && (!end.was_ready || !end.status.ok())) {
      failure = end.was_ready
                    ? fmt::format("the node on {} ended: {}", end.host.text(), end.status.text())
                    : end.sentence();
    }
  }
  return failure;
}

}  // namespace lockstep::launch
