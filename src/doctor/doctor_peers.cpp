#include "doctor/doctor_peers.h"

#include <algorithm>
#include <ctime>

#include <lockstep/base/error.h>

#include "remote/host_address.h"

namespace lockstep::doctor {

namespace {

constexpr auto kFarewellTime = std::chrono::seconds(3);

int64_t wall_clock_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

DoctorPeers::DoctorPeers(const Options& options) {
  const auto begin = base::Clock::now();
  for (const remote::HostEntry& host : options.hosts) {
    DoctorPeer peer{.host = host, .is_local = remote::is_this_host(host)};
    try {
      peer.process = std::make_unique<remote::RemoteProcess>(
          remote::RemoteStart{.host = host,
                              .program = options.program,
                              .arguments = {"doctor", "--serve"},
                              .ssh = options.ssh,
                              .is_local = peer.is_local,
                              .start_timeout = options.start_timeout});
    } catch (const IoError& error) {
      peer.problem = error.what();
    }
    peers_.push_back(std::move(peer));
  }
  const auto is_starting = [](const DoctorPeer& peer) {
    return peer.is_well() && !peer.process->is_ready();
  };
  while (std::any_of(peers_.begin(), peers_.end(), is_starting)) {
    poll_once(base::Deadline::never(), [](size_t, std::string_view) {});
    for (DoctorPeer& peer : peers_) {
      if (peer.is_well() && peer.process->is_ready() && peer.start_s == 0) {
        peer.start_s = std::chrono::duration<double>(base::Clock::now() - begin).count();
      }
    }
  }
}

DoctorPeers::~DoctorPeers() {
  for (DoctorPeer& peer : peers_) {
    if (peer.is_well()) {
      peer.process->close_input();
    }
  }
  const base::Deadline deadline = base::Deadline::after(kFarewellTime);
  const auto is_well = [](const DoctorPeer& peer) { return peer.is_well(); };
  while (std::any_of(peers_.begin(), peers_.end(), is_well) && !deadline.expired()) {
    poll_once(deadline, [](size_t, std::string_view) {});
  }
}

void DoctorPeers::poll_once(base::Deadline deadline,
                            const std::function<void(size_t, std::string_view)>& take) {
  std::vector<pollfd> polls;
  std::vector<size_t> owners;
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (peers_[i].is_well()) {
      peers_[i].process->add_polls(polls);
      owners.push_back(i);
      deadline = deadline.earlier(peers_[i].process->deadline());
    }
  }
  if (::poll(polls.data(), polls.size(), deadline.poll_ms()) < 0) {
    return;  // EINTR
  }
  for (size_t k = 0; k < owners.size(); ++k) {
    DoctorPeer& peer = peers_[owners[k]];
    peer.process->handle(std::span(polls).subspan(k * remote::RemoteProcess::kNumPolls,
                                                  remote::RemoteProcess::kNumPolls),
                         [&](int stream, std::string_view line) {
                           if (stream == 1) {
                             take(owners[k], line);
                           }
                         });
    if (peer.process->end()) {
      peer.problem = peer.process->end()->text;
      peer.fix = peer.process->end()->fix;
    }
  }
}

void DoctorPeers::dismiss(size_t i, const std::string& why) {
  peers_[i].problem = why;
  peers_[i].process.reset();
}

std::vector<DoctorPeers::Json> DoctorPeers::ask(const std::vector<Json>& questions,
                                                std::chrono::nanoseconds timeout) {
  std::vector<Json> answers(peers_.size());
  std::vector<bool> waits(peers_.size());
  for (size_t i = 0; i < peers_.size(); ++i) {
    waits[i] = peers_[i].is_well() && !questions[i].is_null();
    if (waits[i]) {
      peers_[i].asked_ns = wall_clock_ns();
      peers_[i].process->send(questions[i].dump() + "\n");
    }
  }
  const base::Deadline deadline = base::Deadline::after(timeout);
  const auto is_waiting = [&](size_t i) { return waits[i] && peers_[i].is_well(); };
  for (bool waiting = true; waiting;) {
    waiting = false;
    for (size_t i = 0; i < peers_.size(); ++i) {
      if (is_waiting(i) && deadline.expired()) {
        dismiss(i, fmt::format("{} did not answer within {}", peers_[i].host.text(),
                               base::to_text(timeout)));
      }
      waiting = waiting || is_waiting(i);
    }
    if (waiting) {
      poll_once(deadline, [&](size_t i, std::string_view line) {
        peers_[i].answered_ns = wall_clock_ns();
        waits[i] = false;
        answers[i] = Json::parse(line, nullptr, false);
        if (!answers[i].is_object()) {
          answers[i] = {{"error", "an answer that is not JSON"}};
        }
      });
    }
  }
  return answers;
}

}  // namespace lockstep::doctor
