#pragma once

// A file that lives in memory and has a path for other programs: nothing is left of a killed run.

#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace lockstep::app {

class MemoryFile {
 public:
  // Throws IoError.
  MemoryFile(const std::string& name, std::string_view text);

  // Valid while this process lives.
  std::string path() const;

 private:
  base::UniqueFd fd_;
};

}  // namespace lockstep::app
