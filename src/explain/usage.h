#pragma once

// What this process took from its machine, as the kernel counts it.

#include <cstdint>
#include <string>

namespace lockstep::explain {

// Calls of read(2) and its kin by this process since this object was made, whatever they read:
// files, pipes, sockets. Throws IoError where /proc is missing.
class ReadCalls {
 public:
  ReadCalls();
  int64_t count() const;

 private:
  int64_t before_ = 0;
  int64_t own_ = 0;  // what one look at the counter adds to it
};

// The most memory that the process held since this object was made, beyond what it held then.
class PeakMemory {
 public:
  PeakMemory();
  int64_t extra_bytes() const;

 private:
  int64_t before_ = 0;
};

// "275.3 MB": decimal, one decimal place, as storage is sold.
std::string size_text(int64_t bytes);

}  // namespace lockstep::explain
