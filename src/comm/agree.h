#pragma once

// What ranks tell each other outside of tensors: numbers, texts, and what one of them found wrong.
// All functions but caught() and failure_of() are collective.

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include <lockstep/base/error.h>
#include <lockstep/comm/group.h>

namespace lockstep::comm {

// A number of every rank, in their order.
std::vector<int64_t> gather_numbers(Group& group, int64_t number);

// A text of every rank, in their order.
std::vector<std::string> gather_texts(Group& group, const std::string& text);

// The bytes or the text of `root`, on every rank.
std::vector<uint8_t> broadcast_bytes(Group& group, std::vector<uint8_t> bytes, int root = 0);
std::string broadcast_text(Group& group, const std::string& text, int root = 0);

// `error` is what this rank caught, or null. If any rank has one, all throw the error of the
// lowest such rank, in its type (UsageError, FormatError, IoError; InternalError for others), with
// its text and its rank.
void throw_together(Group& group, std::exception_ptr error);

// What `body` throws, or null. A CommError, after which ranks cannot agree on anything, goes on.
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

// The same as a text, empty if nothing is thrown.
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

// The first that is not empty; empty if all are.
std::string first_text(const std::vector<std::string>& texts);

}  // namespace lockstep::comm
