#include "comm/backends/team_backend.h"

#include "comm/membership.h"

namespace lockstep::comm {

TeamBackend::TeamBackend(TeamOptions options, WorkQueue::Execute execute)
    : options_(std::move(options)),
      membership_(options_.membership),
      team_(*options_.team),
      messages_(membership_, team_),
      queue_(std::move(execute)) {}

void TeamBackend::end() {
  const base::Deadline limit = base::Deadline::after(kPendingTime);
  const bool is_idle = queue_.drain(limit) && messages_.drain(limit);
  if (!is_idle) {
    abandon(kDestroyedInFlight);
  }
  queue_.stop();
  membership_->tell_of_exception();
  if (!membership_->failure()) {
    team_.depart();  // who still waits for this rank learns it now
  }
  membership_->leave();
}

void TeamBackend::abandon(const std::string& why) {
  if (!membership_->failure()) {
    membership_->abandon(why);
  }
}

void TeamBackend::check(const Call& call) const {
  membership_->check(call);
}

int TeamBackend::rank() const {
  return membership_->rank();
}

int TeamBackend::size() const {
  return membership_->size();
}

std::optional<Store> TeamBackend::store() const {
  return membership_->store();
}

void TeamBackend::run(Call call) {
  if (call.is_message()) {
    Backend::run(std::move(call));
    return;
  }
  membership_->started(call);
  queue_.run(call);
}

// Memory changes hands between operations.
void TeamBackend::begin_memory_change(const Call& call) {
  membership_->started(call);
  if (!queue_.drain(call.deadline)) {
    membership_->time_out(call);
  }
  compare_calls(call);
}

at::Tensor TeamBackend::allocate(int64_t bytes, const Call& call) {
  begin_memory_change(call);
  return team_.allocate(bytes, call);
}

void TeamBackend::rebind(const at::Tensor& tensor, const Call& call) {
  LocalTeam::segment_of(tensor);  // a wrong one is refused before any other rank hears of it
  begin_memory_change(call);
  team_.rebind(tensor, call);
}

}  // namespace lockstep::comm
