#include "comm/membership.h"

#include <exception>
#include <unistd.h>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/env.h"
#include "base/process/process.h"

namespace lockstep::comm {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;

constexpr auto kAnswerTime = 300ms;  // for others to say where they are, once a deadline has passed
constexpr auto kVerdictTime =
    800ms;  // for the store to tell of a death that the transport noticed first
constexpr auto kPartingTime =
    500ms;  // for others to end the operation that a rank has left, before it says that it is gone
constexpr auto kGoodbyeTime = 10s;  // that the store's host waits for the others at the end

std::string describe_self() {
  char host[256] = "unknown";
  ::gethostname(host, sizeof host - 1);
  return fmt::format("host {}, pid {}", host, base::host_pid());
}

}  // namespace

void Failure::raise(const std::string& call) const {
  switch (kind) {
    case Kind::PeerLost:
      throw PeerLostError("{}: {}", call, reason);
    case Kind::Timeout:
      throw TimeoutError("{}: {}", call, reason);
    case Kind::Desync:
      throw DesyncError("{}: {}", call, reason);
  }
  throw InternalError("a failure of unknown kind: " + reason);
}

Membership::Membership(MembershipOptions options, base::Deadline deadline)
    : options_(std::move(options)),
      who_(describe_self()),
      checks_calls_(base::Env().flag("LOCKSTEP_CHECK_COLLECTIVES").value_or(false)),
      exceptions_at_start_(std::uncaught_exceptions()) {
  base::StoreClient& client = *options_.store.client();
  if (client.add(key(fmt::format("joined/{}", options_.rank)), 1, deadline) != 1) {
    throw UsageError(
        "group: rank {} of a group named {} was made before in this job, and not all of its ranks "
        "have left it; keep the Group that init() or make_group() returned (copies are cheap), or "
        "give the new one another name",
        options_.rank, options_.name);
  }
  if (options_.hosts_store) {
    client.set(key("host"), "1", deadline);
  }
  base::MemberEvents events;
  events.lost = [this](int rank, const std::string& who) {
    fail({Failure::Kind::PeerLost,
          fmt::format("rank {} ({}) is gone: its process ended or its host was lost; "
                      "make a new group of the ranks that are left",
                      rank, who)});
  };
  events.noted = [this](int from, const std::string& text) { on_note(from, text); };
  events.disconnected = [this](const std::string& why) {
    fail({Failure::Kind::PeerLost,
          fmt::format("the job's store is gone, and with it the launcher or rank 0 that "
                      "hosted it: {}",
                      why)});
  };
  client.join(options_.name, options_.rank, who_, std::move(events), deadline);
}

void Membership::leave() noexcept {
  if (has_left_.exchange(true)) {
    return;
  }
  tell_of_exception();
  try {
    base::StoreClient& client = *options_.store.client();
    client.leave(options_.name, options_.rank, base::Deadline::after(1s));
    if (!failure()) {
      say_goodbye(client);
    }
  } catch (const Error& error) {
    log::debug("comm", "group {}: no goodbye: {}", options_.name, error.what());
  }
}

void Membership::tell_of_exception() noexcept {
  if (!failure() && std::uncaught_exceptions() > exceptions_at_start_) {
    blame(options_.rank);
    // All ranks may throw one error that they have agreed on. A rank that is still inside the
    // operation that told it should hear of that error, and not that this rank is gone.
    wait(base::Deadline::after(kPartingTime), [] { return false; });
    if (!failure()) {
      abandon("an exception ended its work");
    }
  }
}

void Membership::say_goodbye(base::StoreClient& client) {
  const base::Deadline deadline = base::Deadline::after(kGoodbyeTime);
  const bool is_last = client.add(key("left"), 1, deadline) == options_.size;
  if (is_last) {
    const bool host_waits = client.try_get(key("host"), deadline).has_value();
    client.erase_prefix(key(""), deadline);
    if (host_waits && !options_.hosts_store) {
      client.set(key("all_left"), "1", deadline);
    }
  } else if (options_.hosts_store) {
    client.get(key("all_left"), deadline);  // a rank that died never leaves, hence the limit
  }
}

std::optional<Failure> Membership::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Membership::fail(Failure failure) {
  bool is_first = false;
  update([&] {
    is_first = !failure_;
    if (is_first) {
      failure_ = std::move(failure);
      has_failed_ = true;
    }
  });
  const std::lock_guard lock(listener_mutex_);
  if (is_first && listener_) {
    listener_();
  }
}

void Membership::on_failure(std::function<void()> listener) {
  const std::lock_guard lock(listener_mutex_);
  listener_ = std::move(listener);
  if ((has_failed_ || has_declined_) && listener_) {
    listener_();
  }
}

std::string Membership::decline(const std::string& reason, base::Deadline deadline) {
  base::StoreClient& client = *options_.store.client();
  // This comes before a rank can notice it in another way, so the first in the store is the cause.
  const std::string first = client.compare_set(key("declined"), "", reason, deadline);
  client.send_note(options_.name, options_.rank, base::store::kToAll, R"({"declined":true})");
  take_decline();
  return first;
}

void Membership::take_decline() {
  const std::lock_guard lock(listener_mutex_);
  has_declined_ = true;
  if (listener_) {
    listener_();
  }
}

void Membership::fail_call(const Call& call, const Failure& failure) {
  fail_everywhere(failure);
  this->failure()->raise(call.text());
}

// Returns nothing if the key was not set within moments: it is time to see if it still can be.
std::optional<std::string> Membership::look_for(const std::string& name, const Call& call) {
  constexpr auto kPatience = 200ms;
  check(call);
  try {
    return options_.store.client()->get(key(name),
                                        call.deadline.earlier(base::Deadline::after(kPatience)));
  } catch (const TimeoutError&) {
    return std::nullopt;
  }
}

std::string Membership::await_key(const std::string& name, const Call& call) {
  while (true) {
    if (auto value = look_for(name, call)) {
      return *std::move(value);
    }
    if (call.deadline.expired()) {
      time_out(call);
    }
  }
}

std::string Membership::await_offer(const std::string& name, const Call& call) {
  while (!has_declined_) {
    if (auto value = look_for(name, call)) {
      return *std::move(value);
    }
    if (call.deadline.expired()) {
      throw TimeoutError("{}: nobody set {} in time", call.text(), key(name));
    }
  }
  throw IoError("{}: a rank has declined", call.text());
}

std::vector<std::string> Membership::gather(const std::string& name, const std::string& text,
                                            const Call& call) {
  base::StoreClient& client = *options_.store.client();
  if (options_.rank != 0) {
    client.set(key(fmt::format("{}/{}", name, options_.rank)), text, call.deadline);
    return Json::parse(await_key(name + "/all", call)).get<std::vector<std::string>>();
  }
  std::vector<std::string> all = {text};
  for (int rank = 1; rank < options_.size; ++rank) {
    all.push_back(await_key(fmt::format("{}/{}", name, rank), call));
  }
  client.set(key(name + "/all"), Json(all).dump(), call.deadline);
  return all;
}

// To be called before the others can hear of it and end.
void Membership::blame(int rank) noexcept {
  if (options_.name != kWorldName) {
    return;  // the ranks of other groups are not the launcher's
  }
  try {
    options_.store.client()->compare_set(base::store::kFirstToFailKey, "", std::to_string(rank),
                                         base::Deadline::after(1s));
  } catch (const std::exception& error) {
    log::debug("comm", "could not tell the launcher that rank {} failed: {}", rank, error.what());
  }
}

void Membership::abandon(const std::string& reason) {
  fail_everywhere({Failure::Kind::PeerLost, "it left the group: " + reason});
}

void Membership::fail_everywhere(const Failure& failure) {
  fail(failure);
  const Json note = {
      {"fail", std::string(1, static_cast<char>(failure.kind))},
      {"reason", fmt::format("rank {} ({}) reported: {}", options_.rank, who_, failure.reason)}};
  try {
    options_.store.client()->send_note(options_.name, options_.rank, base::store::kToAll,
                                       note.dump());
  } catch (const Error& error) {
    log::debug("comm", "group {}: could not tell the others: {}", options_.name, error.what());
  }
}

void Membership::on_note(int from, const std::string& text) {
  try {
    take_note(from, nlohmann::json::parse(text));
  } catch (
      const std::exception& error) {  // what cannot be read or answered must not end the reader
    log::debug("comm", "group {}: a note of rank {}: {}", options_.name, from, error.what());
  }
}

void Membership::take_note(int from, const nlohmann::json& note) {
  if (note.contains("where")) {  // a question; answered on this thread, whatever the others do
    const Json answer = read([this] {
      return Json{{"sequence", sequence_},
                  {"who", who_},
                  {"call", last_call_ ? last_call_->text() : "none"}};
    });
    options_.store.client()->send_note(options_.name, options_.rank, from, answer.dump());
  } else if (note.contains("sequence")) {
    const Progress progress{note.at("sequence"), note.at("who"), note.at("call")};
    update([&] { answers_[from] = progress; });
  } else if (note.contains("declined")) {
    take_decline();
  } else if (note.contains("fail")) {
    const std::string kind = note.at("fail");
    fail({static_cast<Failure::Kind>(kind.at(0)), note.at("reason")});
  }
}

void Membership::started(const Call& call) {
  check(call);
  const std::lock_guard lock(mutex_);
  sequence_ = std::max(sequence_, call.sequence);
  last_call_ = call.label();
}

void Membership::check(const Call& call) const {
  if (has_failed_) {
    failure()->raise(call.text());
  }
}

void Membership::check_same_call(const Call& call) {
  // The steps of a call have its number, and the ranks need not go from one to the next together.
  const bool is_compared = call.sequence == last_compared_;
  if (!checks_calls_ || call.is_message() || is_compared) {
    return;
  }
  last_compared_ = call.sequence;
  base::StoreClient& client = *options_.store.client();
  // Ends with a slash: what begins with "check/1" is also the place of number 10.
  const std::string place = key(fmt::format("check/{}/", call.sequence));
  const std::string mine = call.signature();
  if (options_.rank == 0) {
    client.set(place + "call", mine, call.deadline);
  } else {
    std::string theirs;
    try {
      theirs = client.get(place + "call", call.deadline);
    } catch (const TimeoutError&) {
      time_out(call);
    }
    if (theirs != mine) {
      fail_everywhere({Failure::Kind::Desync,
                       disagreement_text(
                           {.rank = 0, .signature = theirs, .sequence = call.sequence},
                           {.rank = options_.rank, .signature = mine, .sequence = call.sequence})});
    }
  }
  if (client.add(place + "seen", 1, call.deadline) == options_.size) {
    client.erase_prefix(place, call.deadline);
  }
  if (const auto broken = failure()) {
    broken->raise(call.text());
  }
}

std::string Membership::missing_ranks(const Call& call) {
  options_.store.client()->send_note(options_.name, options_.rank, base::store::kToAll,
                                     R"({"where":true})");
  const auto others = static_cast<size_t>(options_.size - 1);
  wait(base::Deadline::after(kAnswerTime), [&] { return answers_.size() == others; });

  const std::lock_guard lock(mutex_);
  std::vector<std::string> parts;
  for (int rank = 0; rank < options_.size; ++rank) {
    if (rank == options_.rank || (call.is_message() && rank != call.peer)) {
      continue;
    }
    const auto answer = answers_.find(rank);
    if (answer == answers_.end()) {
      parts.push_back(fmt::format(
          "rank {} does not answer (not started, stopped, or its machine is overloaded)", rank));
    } else if (call.is_message()) {
      parts.push_back(fmt::format("the last call of rank {} ({}) was {}", rank, answer->second.who,
                                  answer->second.last_call));
    } else if (answer->second.sequence < call.sequence) {
      parts.push_back(fmt::format("rank {} ({}) has not called it, its last call was {}", rank,
                                  answer->second.who, answer->second.last_call));
    }
  }
  return parts.empty() ? "every rank has called it, so the transfer itself is too slow"
                       : fmt::format("{}", fmt::join(parts, "; "));
}

void Membership::time_out(const Call& call) {
  std::string missing;
  try {
    missing = missing_ranks(call);
  } catch (const Error& error) {
    missing = error.what();
  }
  if (!failure()) {
    fail_everywhere({Failure::Kind::Timeout,
                     fmt::format("not done after {}: {}", base::to_text(call.timeout), missing)});
  }
  failure()->raise(call.text());
}

void Membership::transport_failed(const Call& call, const std::string& error) {
  wait(base::Deadline::after(kVerdictTime).earlier(call.deadline), [] { return false; });
  if (!failure()) {
    fail_everywhere(
        {Failure::Kind::PeerLost, fmt::format("a connection between ranks broke: {}", error)});
  }
  failure()->raise(call.text());
}

}  // namespace lockstep::comm
