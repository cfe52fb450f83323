#pragma once

// What a Python worker leaves at TORCHELASTIC_ERROR_FILE when an exception ends it:
//   {"message": {"message": "ValueError: ...",
//                "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "1700000000"}}}
// or {"message": "text"}.

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::launch {

struct WorkerError {
  std::string message;    // "ValueError: ..."; at most kMaxErrorMessage bytes
  std::string callstack;  // as Python prints it; may be empty; at most kMaxCallstack bytes, its end
  int64_t timestamp = 0;  // seconds since 1970; 0: unknown
};

inline constexpr size_t kMaxErrorMessage = 4096;
inline constexpr size_t kMaxCallstack = 16 * 1024;

// For a rank without a log folder: a name that nobody can guess, in the user's own run-time folder
// or in $TMPDIR. No file is made: a job that ends well, or is killed, leaves none.
std::string new_error_file();

// Empty if there is no such file or it is not of this form: a program may write anything there.
// Never throws, never waits.
std::optional<WorkerError> read_error_file(const std::string& path) noexcept;

}  // namespace lockstep::launch
