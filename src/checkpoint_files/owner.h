#pragma once

// One run writes to a place: a record there says which, and whether it is still alive.
//
// In a folder the record is locked (flock), which the kernel ends with the process: on one host,
// and where locks reach other hosts (NFS 4), this alone decides. A bucket has no locks: there a
// socket of the record's name tells the hosts' own processes whether its writer lives. What neither
// can tell, the record can: its writer changes it every OwnerTimes::beat, and one that has not
// changed for OwnerTimes::patience while somebody looked has no writer any more.

#include <chrono>
#include <memory>
#include <string>

namespace lockstep::checkpoint_files {

inline constexpr const char* kOwnerFile = ".lockstep-owner";

struct OwnerTimes {
  std::chrono::milliseconds beat = std::chrono::seconds(10);
  std::chrono::milliseconds patience = std::chrono::seconds(35);
};

// Threads: not thread-safe.
class PlaceOwner {
 public:
  virtual ~PlaceOwner() =
      default;  // gives the place back, and removes folders that are still empty

  // Before each save. Throws IoError if another run has taken the place: this one was thought dead.
  virtual void check() = 0;
};

// Makes the folder if it is not there. Throws UsageError, which says who has the place and what to
// do, if another run has it; IoError if the record cannot be written.
std::unique_ptr<PlaceOwner> claim_place(const std::string& location, OwnerTimes times = {});

}  // namespace lockstep::checkpoint_files
