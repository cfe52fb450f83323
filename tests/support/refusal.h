#pragma once

// What a call that must be refused says.

#include <string>

#include <lockstep/base/error.h>

namespace lockstep::test {

// The message of the UsageError that `call` throws, or "none".
template <typename Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "none";
}

}  // namespace lockstep::test
