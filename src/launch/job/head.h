#pragma once

// The head of a job: the store, the door at which leaders join, and the coordinator. It lives in
// the poll loop of one member's leader, or of a starter that has no ranks itself.

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "base/store/store_server.h"
#include "launch/job/coordinator.h"

namespace lockstep::launch {

class Head : private base::AgentListener {
 public:
  // `store` must outlive this object. `tell_local`: what the coordinator tells the member in this
  // process, if there is one; it is called from inside this object's methods. `say`: to the user.
  Head(const CoordinatorOptions& options, base::StoreServer& store,
       std::function<void(const HeadMessage&)> tell_local,
       std::function<void(const std::string& lines)> say);

  // Takes a message of the member in this process.
  void hear_local(const MemberMessage& message);
  // For this process, whether it is a member or not.
  void signal(int signal) { coordinator_.signal(signal, base::Clock::now()); }
  void abandon(const std::string& why) { coordinator_.abandon(why, base::Clock::now()); }

  // For the caller's poll loop.
  int fd() const { return store_.fd(); }
  base::Deadline next_timeout() const;
  void serve();

  bool is_over() const { return coordinator_.is_over(); }
  const Report& report() const { return coordinator_.report(); }
  // True while a member has yet to hear how the job ended.
  bool has_members() const { return !addresses_.empty(); }

 private:
  static constexpr MemberId kLocal = 0;  // the store counts its clients from 2

  void agent_came(uint64_t agent, const std::string& address) override;
  void agent_said(uint64_t agent, const std::string& text) override;
  void agent_went(uint64_t agent) override;
  void send(MemberId member, const HeadMessage& message);
  size_t ask_ranks(const std::string& request);
  std::optional<int> first_to_fail() const;

  base::StoreServer& store_;
  std::function<void(const HeadMessage&)> tell_local_;
  std::map<uint64_t, std::string> addresses_;  // of the agents that are connected
  Coordinator coordinator_;
};

}  // namespace lockstep::launch
