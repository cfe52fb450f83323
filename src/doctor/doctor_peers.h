#pragma once

// Asks `lockstep doctor --serve` on all hosts at the same time.

#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "remote/remote_process.h"

namespace lockstep::doctor {

// One of these hosts.
struct DoctorPeer {
  remote::HostEntry host;
  bool is_local = false;
  std::unique_ptr<remote::RemoteProcess> process;  // empty if it could not be started
  double start_s = 0;                              // until lockstep ran there
  std::string problem;  // why it is not asked any more; empty: it answers
  std::string fix;
  int64_t asked_ns = 0;     // wall clock here, of the last question ...
  int64_t answered_ns = 0;  // ... and of its answer

  bool is_well() const { return problem.empty(); }
};

// It has no threads of its own.
class DoctorPeers {
 public:
  using Json = nlohmann::json;

  struct Options {
    std::vector<remote::HostEntry> hosts;  // REQUIRED
    std::string program;                   // REQUIRED: as in RemoteStart
    remote::SshOptions ssh;
    std::chrono::nanoseconds start_timeout = std::chrono::seconds(20);
  };
  // Starts all at once and returns when each is ready or has failed.
  explicit DoctorPeers(const Options& options);
  // Closes their input and waits until they have cleaned up.
  ~DoctorPeers();
  DoctorPeers(const DoctorPeers&) = delete;
  DoctorPeers& operator=(const DoctorPeers&) = delete;

  size_t size() const { return peers_.size(); }
  const DoctorPeer& operator[](size_t i) const { return peers_[i]; }

  // Asks each host its question and waits for all answers; null: not asked. The answer is null too
  // if the host was not asked, or is lost (its `problem` then says why: it died, or did not answer
  // in time).
  std::vector<Json> ask(const std::vector<Json>& questions, std::chrono::nanoseconds timeout);

  // From now on the host is not asked any more.
  void dismiss(size_t i, const std::string& why);

  // Asks all hosts that are well the same question.
  std::vector<Json> ask_all(const Json& question, std::chrono::nanoseconds timeout) {
    return ask(std::vector<Json>(size(), question), timeout);
  }

 private:
  void poll_once(base::Deadline deadline,
                 const std::function<void(size_t, std::string_view)>& take);

  std::vector<DoctorPeer> peers_;
};

}  // namespace lockstep::doctor
