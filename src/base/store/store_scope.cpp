#include "base/store/store_scope.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/store/store_protocol.h"

namespace lockstep::base::store {
namespace {

// A stranger's own words, fit for the log: it must not write lines of its own there.
std::string printable(std::string text) {
  constexpr size_t kMaxShown = 64;
  text.resize(std::min(text.size(), kMaxShown));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

}  // namespace

std::string scope_mistake(const Admission& admission, const std::string& scope) {
  const std::string& job_id = admission.job_id;
  const std::string ranks =
      admission.generation < 0 ? job_id : rank_scope(job_id, admission.generation);
  if (scope == ranks || (admission.takes_agents && scope == agent_scope(job_id))) {
    return "";
  }
  if (admission.generation >= 0 && scope.starts_with(job_id + "/g")) {
    return fmt::format("it belongs to start {} of the job, which is at start {}",
                       printable(scope.substr(job_id.size() + 2)), admission.generation);
  }
  if (scope == job_id || scope.starts_with(job_id + "/")) {
    return fmt::format("it greets as {}, where {} is expected", printable(scope), ranks);
  }
  return fmt::format("it belongs to job {}, not to this one",
                     printable(scope.substr(0, scope.find('/'))));
}

}  // namespace lockstep::base::store
