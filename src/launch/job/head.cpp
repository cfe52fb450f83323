#include "launch/job/head.h"

#include <limits>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "base/store/store_protocol.h"

namespace lockstep::launch {

Head::Head(const CoordinatorOptions& options, base::StoreServer& store,
           std::function<void(const HeadMessage&)> tell_local,
           std::function<void(const std::string& lines)> say)
    : store_(store),
      tell_local_(std::move(tell_local)),
      coordinator_(options,
                   {.send = [this](MemberId to, const HeadMessage& what) { send(to, what); },
                    .hang_up =
                        [this](MemberId member) {
                          if (member != kLocal) {
                            store_.hang_up(member);
                          }
                        },
                    .begin_generation = [this](int64_t g) { store_.begin_generation(g); },
                    .ask_ranks = [this](const std::string& what) { return ask_ranks(what); },
                    .say = std::move(say),
                    .first_to_fail = [this] { return first_to_fail(); }},
                   base::Clock::now()) {
  store_.listen_to_agents(*this);
}

void Head::send(MemberId member, const HeadMessage& message) {
  if (member == kLocal) {
    tell_local_(message);
  } else {
    store_.tell_agent(member, message.to_json());
  }
}

size_t Head::ask_ranks(const std::string& request) {
  store_.announce(base::store::kRequestGroup, request);
  return store_.num_members(base::store::kRequestGroup);
}

std::optional<int> Head::first_to_fail() const {
  const auto text = store_.find(base::store::kFirstToFailKey);
  const auto rank =
      text ? base::parse_integer(*text, 0, std::numeric_limits<int>::max()) : std::nullopt;
  return rank ? std::optional(static_cast<int>(*rank)) : std::nullopt;
}

void Head::hear_local(const MemberMessage& message) {
  coordinator_.hear(kLocal, message, base::Clock::now());
}

base::Deadline Head::next_timeout() const {
  return store_.next_timeout().earlier(coordinator_.next_tick());
}

void Head::serve() {
  store_.serve();
  coordinator_.tick(base::Clock::now());
}

void Head::agent_came(uint64_t agent, const std::string& address) {
  addresses_[agent] = address;
}

void Head::agent_said(uint64_t agent, const std::string& text) {
  MemberMessage message = MemberMessage::from_json(text);  // FormatError: the store drops it
  if (message.kind == MemberSays::Join && message.info.address.empty()) {
    message.info.address = addresses_.at(agent);
  }
  coordinator_.hear(agent, message, base::Clock::now());
}

void Head::agent_went(uint64_t agent) {
  addresses_.erase(agent);
  coordinator_.lose(agent, "its connection ended", base::Clock::now());
}

}  // namespace lockstep::launch
