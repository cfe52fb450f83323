#include "base/atomic_file.h"

#include <cerrno>
#include <fcntl.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/secret.h"

namespace lockstep::base {

std::string unfinished_path(const std::string& path) {
  return fmt::format("{}.{}{}", path, make_job_id(), kUnfinishedEnd);
}

AtomicFile::AtomicFile(std::string path)
    : path_(std::move(path)),
      beside_(unfinished_path(path_)),
      fd_(open_file(beside_, O_WRONLY | O_CREAT | O_EXCL)) {}

AtomicFile::~AtomicFile() {
  if (fd_) {
    ::unlink(beside_.c_str());
  }
}

void AtomicFile::append(std::span<const std::byte> bytes) {
  try {
    write_all(fd_.get(), bytes.data(), bytes.size());
  } catch (const IoError& error) {
    throw IoError("{}: {}", beside_, error.what());
  }
  size_ += bytes.size();
}

void AtomicFile::commit() {
  if (::fsync(fd_.get()) != 0) {
    throw IoError("cannot sync {}: {}", beside_, errno_text(errno));
  }
  if (::rename(beside_.c_str(), path_.c_str()) != 0) {
    throw IoError("cannot rename {} to {}: {}", beside_, path_, errno_text(errno));
  }
  fd_.reset();
  const size_t slash = path_.find_last_of('/');
  const UniqueFd folder = open_file(slash == std::string::npos ? "." : path_.substr(0, slash + 1),
                                    O_RDONLY | O_DIRECTORY);
  if (::fsync(folder.get()) != 0) {
    throw IoError("cannot sync the folder of {}: {}", path_, errno_text(errno));
  }
}

}  // namespace lockstep::base
