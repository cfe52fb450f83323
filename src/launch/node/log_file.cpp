#include "launch/node/log_file.h"

#include <fcntl.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

namespace lockstep::launch {

LogFile::LogFile(const std::string& path)
    : path_(path), fd_(base::open_file(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW)) {}

void LogFile::write(std::string_view bytes) {
  if (!fd_) {
    return;
  }
  try {
    base::write_all(fd_.get(), bytes.data(), bytes.size());
  } catch (const IoError& error) {
    log::warn("launch", "{}: {}; going on without this log file", path_, error.what());
    fd_.reset();
  }
}

}  // namespace lockstep::launch
