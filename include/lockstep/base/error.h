#pragma once

// Errors: who can do what about it decides the type.
//
//   UsageError      the caller's argument, flag, file or environment is wrong; mend it and call
//   again CommError       a collective did not happen; the group is unusable, make a new one:
//     PeerLostError   a rank's process or host is gone
//     TimeoutError    a rank is late: the deadline passed
//     DesyncError     ranks called different collectives
//   IoError         a file or socket could not be read or written
//   FormatError     a file or message is torn, hostile or of another format
//   InternalError   a bug in lockstep (LOCKSTEP_CHECK)
//
// A message says what was tried, the value, the limit and the way out. The library never exits,
// aborts or prints: these exceptions are all it says. Constructors take a fmt format string and its
// arguments:  throw UsageError("sampler: rank {} is not in [0, {}); is RANK set?", rank, size);

#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace lockstep {

// The root of all errors that lockstep throws.
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
LOCKSTEP_DECLARE_ERROR(InternalError, Error);

#undef LOCKSTEP_DECLARE_ERROR

// Throws InternalError unless `condition` holds, in release builds too. For what cannot happen
// unless lockstep has a bug; never for anything a user, a file or a peer can cause.
//   LOCKSTEP_CHECK(offset <= size, "offset {} beyond {}", offset, size);
#define LOCKSTEP_CHECK(condition, ...)                                                           \
  do {                                                                                           \
    if (!(condition)) {                                                                          \
      throw ::lockstep::InternalError("{}:{}: {} does not hold: {}; this is a bug in lockstep",  \
                                      __FILE__, __LINE__, #condition, fmt::format(__VA_ARGS__)); \
    }                                                                                            \
  } while (false)

}  // namespace lockstep
