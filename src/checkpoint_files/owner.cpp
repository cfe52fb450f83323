#include "checkpoint_files/owner.h"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>

#include <fmt/chrono.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/deadline.h"
#include "base/env.h"
#include "base/process/process.h"
#include "base/secret.h"
#include "checkpoint_files/checkpoint_list.h"
#include "checkpoint_files/owner_medium.h"

namespace lockstep::checkpoint_files {

namespace {

using std::chrono::milliseconds;

// What the record holds.
struct Owner {
  std::string token;    // of this claim alone
  std::string host;     // for people
  std::string job;      // likewise
  std::string boot;     // which start of which machine
  std::string network;  // its network namespace, in which the socket is seen
  int64_t pid = 0;
  int64_t since_s = 0;
  uint64_t beat = 0;  // rises while it lives
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Owner, token, host, job, boot, network, pid, since_s, beat)

std::string boot_id() {
  try {
    return base::read_file("/proc/sys/kernel/random/boot_id", 100);
  } catch (const IoError&) {
    return "";
  }
}

Owner own_record() {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  std::error_code ignored;
  return {.token = base::make_secret(),
          .host = host,
          .job = base::Env().text("LOCKSTEP_JOB_ID").value_or(""),
          .boot = boot_id(),
          .network = std::filesystem::read_symlink("/proc/self/ns/net", ignored).string(),
          .pid = base::host_pid(),
          .since_s = static_cast<int64_t>(::time(nullptr))};
}

std::string text_of(const Owner& owner) {
  return nlohmann::json(owner).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

// Nothing if the text is no owner: a writer that was killed in the middle of writing left it so.
std::optional<Owner> parse_owner(const std::optional<std::string>& text) {
  try {
    return text ? std::optional(nlohmann::json::parse(*text).get<Owner>()) : std::nullopt;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

// Takes the name that tells processes of this network namespace that the claim's process lives: it
// goes with the process. An empty one if it is taken, or there are no such sockets here.
base::UniqueFd bind_name(const std::string& token) {
  base::UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "lockstep-owner-" + token;  // behind a zero: no file
  const size_t size = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), size);
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
  return fd && ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), bytes) == 0
             ? std::move(fd)
             : base::UniqueFd();
}

class Claim : public PlaceOwner {
 public:
  Claim(const std::string& location, OwnerTimes times)
      : location_(location),
        times_(times),
        medium_(make_owner_medium(location)),
        own_(own_record()),
        name_(bind_name(own_.token)) {
    take();
    beats_ = std::thread([this] { beat(); });
  }

  ~Claim() override {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
      changed_.notify_all();
    }
    beats_.join();
    try {
      if (is_own(medium_->read())) {
        medium_->remove();
      }
    } catch (const std::exception& error) {
      log::warn("checkpoint", "{}: {}; the next run removes it", location_, error.what());
    }
  }

  void check() override {
    const std::lock_guard lock(mutex_);
    const auto text = medium_->read();
    if (!text) {
      take();  // somebody has cleared the place
    } else if (!is_own(text)) {
      throw IoError(
          "{} has been taken by another run{}, which thought this one dead; its checkpoints are "
          "left alone: end one of the two",
          location_, who(parse_owner(text)));
    }
  }

 private:
  bool is_own(const std::optional<std::string>& text) const {
    const auto owner = parse_owner(text);
    return owner && owner->token == own_.token;
  }

  void take() {
    OwnerLock lock = medium_->lock();
    auto found = medium_->read();
    if (lock == OwnerLock::Others || is_alive(found, lock)) {
      refuse(found);
    }
    if (found && !medium_->read()) {  // its run ended while this one waited for a sign of it,
      lock = medium_->lock();         // and has removed the file that was locked
      found.reset();
    }
    // What stands there afterwards decides: another may have been quicker; and a bucket says that
    // it has the record already when its answer was lost and the request made again.
    if (lock != OwnerLock::Others) {
      medium_->write(text_of(own_), !found);
    }
    found = medium_->read();
    if (!is_own(found)) {
      refuse(found);
    }
  }

  bool is_alive(const std::optional<std::string>& text, OwnerLock lock) const {
    const auto owner = parse_owner(text);
    if (!owner) {
      return false;
    }
    if (!own_.boot.empty() && owner->boot == own_.boot) {
      if (lock == OwnerLock::Ours) {
        return false;
      }
      if (owner->network == own_.network) {
        return !bind_name(owner->token);
      }
    }
    return has_beat(*text, *owner);
  }

  bool has_beat(const std::string& text, const Owner& owner) const {
    log::warn("checkpoint", "{} has a record of another run{}; waiting up to {} for a sign of it",
              location_, who(owner), base::to_text(times_.patience));
    const base::Deadline deadline = base::Deadline::after(times_.patience);
    while (!deadline.expired()) {
      std::this_thread::sleep_for(std::min(times_.beat / 4, milliseconds(1000)));
      if (const auto now = medium_->read(); now != text) {
        return now.has_value();
      }
    }
    return false;
  }

  static std::string who(const std::optional<Owner>& owner) {
    if (!owner) {
      return "";
    }
    const std::string job = owner->job.empty() ? "" : fmt::format(", job {}", owner->job);
    return fmt::format(" (pid {} on {}{}, since {:%Y-%m-%d %H:%M:%S} UTC)", owner->pid, owner->host,
                       job, fmt::gmtime(static_cast<std::time_t>(owner->since_s)));
  }

  [[noreturn]] void refuse(const std::optional<std::string>& text) const {
    throw UsageError(
        "checkpoint: {} is in use: another run{} writes its checkpoints there, and two would "
        "delete "
        "and replace each other's; give this run a checkpoint.dir of its own, or end the other "
        "first (if it is gone for sure, remove {})",
        location_, who(parse_owner(text)), joined_location(location_, kOwnerFile));
  }

  // A record that is no longer this run's is left to check().
  void beat() {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, times_.beat, [this] { return is_over_; })) {
      try {
        if (is_own(medium_->read())) {
          ++own_.beat;
          medium_->write(text_of(own_), false);
        }
      } catch (const std::exception& error) {
        log::debug("checkpoint", "{}: {}", location_, error.what());  // the next save tells it
      }
    }
  }

  const std::string location_;
  const OwnerTimes times_;
  const std::unique_ptr<OwnerMedium> medium_;
  Owner own_;
  const base::UniqueFd name_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread beats_;
};

}  // namespace

std::unique_ptr<PlaceOwner> claim_place(const std::string& location, OwnerTimes times) {
  return std::make_unique<Claim>(location, times);
}

}  // namespace lockstep::checkpoint_files
