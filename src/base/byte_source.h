#pragma once

// Where readers of files get their bytes from: a file here, an object store elsewhere, memory in
// tests. Read by offset and never mapped: a mapped file that another process cuts kills the reader.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/unique_fd.h"

namespace lockstep::base {

// Threads: const methods may be called concurrently.
class ByteSource {
 public:
  virtual ~ByteSource() = default;

  virtual const std::string& name() const = 0;  // for messages: a path, an address
  virtual uint64_t size() const = 0;            // when it was opened

  // Fills `bytes` from `offset` on. Throws FormatError if they are not inside size(), and IoError
  // if they cannot be read or are no longer there, naming the source and the offset.
  void read_at(uint64_t offset, std::span<std::byte> bytes) const;
  std::string read_text(uint64_t offset, uint64_t size) const;

 private:
  virtual void read_inside(uint64_t offset, std::span<std::byte> bytes) const = 0;
};

class FileSource : public ByteSource {
 public:
  // Throws IoError if there is no regular file at `path` that can be read.
  explicit FileSource(std::string path);

  const std::string& name() const override { return path_; }
  uint64_t size() const override { return size_; }
  int fd() const { return fd_.get(); }

 private:
  void read_inside(uint64_t offset, std::span<std::byte> bytes) const override;

  std::string path_;
  UniqueFd fd_;
  uint64_t size_ = 0;
};

// Reads memory that the caller keeps alive.
class MemorySource : public ByteSource {
 public:
  explicit MemorySource(std::span<const std::byte> bytes, std::string name = "memory")
      : name_(std::move(name)), bytes_(bytes) {}

  const std::string& name() const override { return name_; }
  uint64_t size() const override { return bytes_.size(); }

 private:
  void read_inside(uint64_t offset, std::span<std::byte> bytes) const override;

  std::string name_;
  std::span<const std::byte> bytes_;
};

}  // namespace lockstep::base
