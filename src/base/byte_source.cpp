#include "base/byte_source.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/base/error.h>

namespace lockstep::base {

void ByteSource::read_at(uint64_t offset, std::span<std::byte> bytes) const {
  if (offset > size() || bytes.size() > size() - offset) {
    throw FormatError("{}: {} bytes at offset {} are not inside its {} bytes; it is truncated",
                      name(), bytes.size(), offset, size());
  }
  read_inside(offset, bytes);
}

std::string ByteSource::read_text(uint64_t offset, uint64_t size) const {
  if (size > this->size()) {  // before memory is taken for it
    throw FormatError("{}: {} bytes at offset {} are not inside its {} bytes; it is truncated",
                      name(), size, offset, this->size());
  }
  std::string text(size, '\0');
  read_at(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

FileSource::FileSource(std::string path)
    : path_(std::move(path)), fd_(open_file(path_, O_RDONLY | O_NONBLOCK)) {
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) {
    throw IoError("cannot read {}: {}", path_, errno_text(errno));
  }
  if (!S_ISREG(info.st_mode)) {
    throw IoError("cannot read {}: it is not a regular file", path_);
  }
  size_ = static_cast<uint64_t>(info.st_size);
}

void FileSource::read_inside(uint64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t n = ::pread(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      throw IoError("cannot read {} at offset {}: {}", path_, offset, errno_text(errno));
    }
    if (n == 0) {
      throw IoError(
          "cannot read {} at offset {}: it ends there now and had {} bytes when it was opened; "
          "does another process write it?",
          path_, offset, size_);
    }
    offset += static_cast<uint64_t>(n);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void MemorySource::read_inside(uint64_t offset, std::span<std::byte> bytes) const {
  if (!bytes.empty()) {
    std::memcpy(bytes.data(), bytes_.data() + offset, bytes.size());
  }
}

}  // namespace lockstep::base
