#pragma once

// One rank's log file. A full disk must not end the training.

#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace lockstep::launch {

class LogFile {
 public:
  LogFile() = default;  // no file
  // Throws IoError if it cannot be made, or is a link: somebody else may have put it there.
  explicit LogFile(const std::string& path);

  // Logs the first failure; then the file is given up and the rank goes on.
  void write(std::string_view bytes);

  bool is_open() const { return static_cast<bool>(fd_); }

 private:
  std::string path_;
  base::UniqueFd fd_;
};

}  // namespace lockstep::launch
