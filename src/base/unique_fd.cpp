#include "base/unique_fd.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/atomic_file.h"

namespace lockstep::base {

std::string errno_text(int error) {
  std::string text = std::generic_category().message(error);
  rlimit limit{};
  if (error == EMFILE && ::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    text += fmt::format(" (this process may have {}: `ulimit -n`; its hard limit is {})",
                        limit.rlim_cur, limit.rlim_max);
  } else if (error == ENFILE) {
    text += " (on this host: the sysctl fs.file-max)";
  }
  return text;
}

void UniqueFd::reset(int fd) {
  const int old = std::exchange(fd_, fd);
  if (old >= 0) {
    ::close(old);  // EINTR still closes on Linux: never retry
  }
}

FdPair make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) {
    throw IoError("cannot make a pipe: {}", errno_text(errno));
  }
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

FdPair make_socket_pair(int type) {
  int fds[2];
  if (::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, fds) != 0) {
    throw IoError("cannot make a socket pair: {}", errno_text(errno));
  }
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

UniqueFd open_file(const std::string& path, int flags, int mode) {
  UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC, mode));
  if (!fd) {
    throw IoError("cannot open {}: {}", path, errno_text(errno));
  }
  return fd;
}

std::string read_file(const std::string& path, size_t max_bytes) {
  const UniqueFd fd = open_file(path, O_RDONLY);
  std::string text;
  char buffer[65536];
  for (;;) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n == 0) {
      return text;
    }
    if (n < 0) {
      if (errno == EINTR) {
        continue;
      }
      throw IoError("cannot read {}: {}", path, errno_text(errno));
    }
    text.append(buffer, static_cast<size_t>(n));
    if (text.size() > max_bytes) {
      throw IoError("cannot read {}: it has more than {} bytes", path, max_bytes);
    }
  }
}

void write_all(int fd, const void* bytes, size_t size) {
  const char* next = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t n = ::write(fd, next, size);
    if (n < 0) {
      if (errno == EINTR) {
        continue;
      }
      throw IoError("cannot write {} bytes: {}", size, errno_text(errno));
    }
    next += n;
    size -= static_cast<size_t>(n);
  }
}

void write_file_atomically(const std::string& path, const std::string& text) {
  const std::string beside = unfinished_path(path);
  try {
    const UniqueFd fd = open_file(beside, O_WRONLY | O_CREAT | O_EXCL);
    write_all(fd.get(), text.data(), text.size());
    if (::fsync(fd.get()) != 0) {
      throw IoError("cannot sync {}: {}", beside, errno_text(errno));
    }
    if (::rename(beside.c_str(), path.c_str()) != 0) {
      throw IoError("cannot rename {} to {}: {}", beside, path, errno_text(errno));
    }
  } catch (const IoError&) {
    ::unlink(beside.c_str());
    throw;
  }
  const size_t slash = path.find_last_of('/');
  const UniqueFd folder = open_file(slash == std::string::npos ? "." : path.substr(0, slash + 1),
                                    O_RDONLY | O_DIRECTORY);
  if (::fsync(folder.get()) != 0) {
    throw IoError("cannot sync the folder of {}: {}", path, errno_text(errno));
  }
}

Mapping::Mapping(int fd, size_t size, int protection, int flags) : size_(size) {
  if (size == 0) {
    return;
  }
  void* address = ::mmap(nullptr, size, protection, fd < 0 ? flags | MAP_ANONYMOUS : flags, fd, 0);
  if (address == MAP_FAILED) {
    size_ = 0;
    throw IoError("cannot map {} bytes: {}", size, errno_text(errno));
  }
  data_ = static_cast<std::byte*>(address);
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    reset();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

void Mapping::reset() {
  if (data_ != nullptr) {
    ::munmap(data_, size_);
  }
  data_ = nullptr;
  size_ = 0;
}

}  // namespace lockstep::base
