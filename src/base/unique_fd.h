#pragma once

// File descriptors and memory mappings that close themselves.

#include <cstddef>
#include <string>
#include <utility>

namespace lockstep::base {

// Owns a file descriptor. Move-only; -1 is "none".
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { reset(); }

  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    reset(other.release());
    return *this;
  }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

// Both ends of a pipe or socket pair.
struct FdPair {
  UniqueFd read;   // of a socket pair: one end
  UniqueFd write;  // of a socket pair: the other
};

// Close-on-exec, as every descriptor that lockstep makes. Throw IoError.
FdPair make_pipe();
FdPair make_socket_pair(int type);  // SOCK_STREAM, SOCK_SEQPACKET, ...
UniqueFd open_file(const std::string& path, int flags, int mode = 0644);

// Reads a whole (small) file; throws IoError when it cannot or it has more than `max_bytes`.
std::string read_file(const std::string& path, size_t max_bytes = 16u << 20);

// Writes `text` beside `path`, syncs, renames over it: `path` holds the old text or the new, never
// a part.
void write_file_atomically(const std::string& path, const std::string& text);

// Writes all of `bytes` to a blocking descriptor. Throws IoError.
void write_all(int fd, const void* bytes, size_t size);

// Owns a mapping made by mmap(2).
class Mapping {
 public:
  Mapping() = default;
  // Maps `size` bytes of `fd` (or anonymous memory if fd is -1). `protection` and `flags` as for
  // mmap(2).
  Mapping(int fd, size_t size, int protection, int flags);
  ~Mapping() { reset(); }

  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  void reset();

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// strerror(error) in words, for messages; with the limit to raise where there is one (EMFILE).
std::string errno_text(int error);

}  // namespace lockstep::base
