#pragma once

// Whom the store's server lets in, by the scope of a greeting.

#include <cstdint>
#include <string>

namespace lockstep::base::store {

struct Admission {
  std::string job_id;
  int64_t generation = -1;  // of the ranks; -1: they are not told apart by it
  bool takes_agents = false;
};

// Empty if a client of this scope may go on to prove itself, else a sentence for it and the log.
std::string scope_mistake(const Admission& admission, const std::string& scope);

}  // namespace lockstep::base::store
