#include "memory_file.h"

#include <cerrno>
#include <sys/mman.h>
#include <unistd.h>

#include <lockstep/base/error.h>

namespace lockstep::app {

MemoryFile::MemoryFile(const std::string& name, std::string_view text)
    : fd_(::memfd_create(name.c_str(), MFD_CLOEXEC)) {
  if (!fd_) {
    throw IoError("cannot keep {} in memory: {}", name, base::errno_text(errno));
  }
  base::write_all(fd_.get(), text.data(), text.size());
}

std::string MemoryFile::path() const {
  return fmt::format("/proc/{}/fd/{}", ::getpid(), fd_.get());
}

}  // namespace lockstep::app
