#pragma once

// The errors that lockstep throws. The type of an error says who can do something about it:
//
//   type              what happened                                 what to do
//   UsageError        the caller's argument, flag, file or          correct it and call again
//                     environment variable is wrong
//   CommError         a collective did not happen                   make a new group
//     PeerLostError     a rank's process or host is gone
//     TimeoutError      a rank is late: the deadline has passed
//     DesyncError       the ranks called different collectives
//   IoError           a file or a socket cannot be read or written  check the disk or the network
//   FormatError       a file or a message is damaged, hostile or    replace it
//                     of another format
//   OutOfMemoryError  a GPU has too little memory                   lower the batch size
//   InternalError     lockstep has a bug (LOCKSTEP_CHECK)           report it
//
// Every message says what was tried, the value, the limit and the way out. The library never exits,
// aborts or prints: it reports errors by these exceptions and in no other way. Whether an object is
// still usable after an error is stated where the object is declared; the rule is that a UsageError
// changes nothing, and that a group is unusable after a CommError.
//
// Each type is constructed from a text, or from a format string of fmt and its arguments. The
// compiler checks the format string.
//
// Example:
//   if (num_ranks < 1) {
//     throw lockstep::UsageError("sampler: num_ranks = {} must be at least 1", num_ranks);
//   }
//   try {
//     group.barrier();
//   } catch (const lockstep::PeerLostError& error) {
//     lockstep::log::warn("app", "continuing without a rank: {}", error.what());
//   }

#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace lockstep {

// The base of all errors that lockstep throws.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Declares an error type with the two constructors that all of them share.
#define LOCKSTEP_DECLARE_ERROR(Name, Base)                                                      \
  class Name : public Base {                                                                    \
   public:                                                                                      \
    explicit Name(const std::string& message) : Base(message) {}                                \
    template <typename First, typename... Rest>                                                 \
    Name(fmt::format_string<First, Rest...> format, First&& first, Rest&&... rest)              \
        : Base(fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...)) {} \
  }

LOCKSTEP_DECLARE_ERROR(UsageError, Error);
LOCKSTEP_DECLARE_ERROR(CommError, Error);
LOCKSTEP_DECLARE_ERROR(PeerLostError, CommError);
LOCKSTEP_DECLARE_ERROR(TimeoutError, CommError);
LOCKSTEP_DECLARE_ERROR(DesyncError, CommError);
LOCKSTEP_DECLARE_ERROR(IoError, Error);
LOCKSTEP_DECLARE_ERROR(FormatError, Error);
LOCKSTEP_DECLARE_ERROR(OutOfMemoryError, Error);
LOCKSTEP_DECLARE_ERROR(InternalError, Error);

#undef LOCKSTEP_DECLARE_ERROR

// Throws InternalError unless `condition` holds, in release builds too. Use it for what cannot
// happen unless lockstep has a bug, and never for what a user, a file or a peer can cause.
//
// Example:
//   LOCKSTEP_CHECK(offset <= size, "offset {} beyond {}", offset, size);
#define LOCKSTEP_CHECK(condition, ...)                                                           \
  do {                                                                                           \
    if (!(condition)) {                                                                          \
      throw ::lockstep::InternalError("{}:{}: {} does not hold: {}; this is a bug in lockstep",  \
                                      __FILE__, __LINE__, #condition, fmt::format(__VA_ARGS__)); \
    }                                                                                            \
  } while (false)

}  // namespace lockstep
