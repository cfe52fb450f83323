#pragma once

// What one rank finds wrong, every rank throws; and texts from one rank to all.

#include <cstdint>
#include <exception>
#include <vector>

#include <lockstep/comm/group.h>

namespace lockstep::weights {

// Collective. `error` is what this rank caught, or null. If any rank has one, all throw the error
// of the lowest such rank, in its type (UsageError, FormatError, IoError; InternalError for
// others), with its text and its rank.
void throw_together(Group& group, std::exception_ptr error);

// Runs `body` and returns what it threw; but a CommError, after which there is no agreeing on
// anything, goes on.
template <typename Body>
std::exception_ptr caught(Body body);

// Collective: the bytes of rank 0, on every rank.
std::vector<uint8_t> broadcast_bytes(Group& group, std::vector<uint8_t> bytes, int root = 0);

// Collective: a number of every rank, in their order.
std::vector<int64_t> gather_numbers(Group& group, int64_t number);

}  // namespace lockstep::weights

#include <lockstep/base/error.h>

namespace lockstep::weights {

template <typename Body>
std::exception_ptr caught(Body body) {
  try {
    body();
  } catch (const CommError&) {
    throw;
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace lockstep::weights
