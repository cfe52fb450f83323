#pragma once

#include <string>
#include <vector>

#include <lockstep/comm/group.h>

namespace lockstep::checkpoint {

// Collective: a text of every rank, in their order.
std::vector<std::string> gather_texts(Group& group, const std::string& text);

// The first that is not empty; empty if all are.
std::string first_text(const std::vector<std::string>& texts);

// What `body` throws, as text: empty if nothing. A CommError, after which there is no agreeing on
// anything, goes on.
template <typename Body>
std::string failure_of(Body body);

}  // namespace lockstep::checkpoint

#include <lockstep/base/error.h>

namespace lockstep::checkpoint {

template <typename Body>
std::string failure_of(Body body) {
  try {
    body();
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace lockstep::checkpoint
