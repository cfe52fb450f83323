#include <cerrno>
#include <cstdint>
#include <fcntl.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"
#include "checkpoint_files/place.h"

namespace lockstep::checkpoint_files {

namespace {

constexpr uint64_t kPage = 4096;  // what O_DIRECT wants offsets, sizes and addresses to be of

class DirectFile : public ShardSink {
 public:
  DirectFile(const std::string& path, uint64_t bytes)
      : path_(path), fd_(base::open_file(path, O_WRONLY | O_CREAT | O_TRUNC)) {
    // Some file systems cannot take room ahead: there a full disk shows while writing.
    if (bytes > 0 && take_room(static_cast<off_t>(bytes)) != 0 && errno != EOPNOTSUPP &&
        errno != ENOSYS) {
      throw IoError("cannot take {} bytes for {}: {}", bytes, path, base::errno_text(errno));
    }
    direct_.reset(::open(path.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC));
  }

  void append(std::span<const std::byte> bytes) override {
    const bool is_aligned = size_ % kPage == 0 && bytes.size() % kPage == 0 &&
                            reinterpret_cast<uintptr_t>(bytes.data()) % kPage == 0;
    size_t done = 0;
    while (done < bytes.size()) {
      const bool is_direct = is_aligned && direct_ && done % kPage == 0;
      const ssize_t n = ::pwrite(is_direct ? direct_.get() : fd_.get(), bytes.data() + done,
                                 bytes.size() - done, static_cast<off_t>(size_ + done));
      if (n >= 0) {
        done += static_cast<size_t>(n);
      } else if (is_direct && errno == EINVAL) {
        direct_.reset();  // this file system wants more, or has none of it
      } else if (errno != EINTR) {
        throw IoError("cannot write {} at offset {}: {}", path_, size_ + done,
                      base::errno_text(errno));
      }
    }
    size_ += bytes.size();
  }

  void finish() override {
    if (::fsync(fd_.get()) != 0) {
      throw IoError("cannot sync {}: {}", path_, base::errno_text(errno));
    }
    direct_.reset();
    fd_.reset();
  }

 private:
  int take_room(off_t bytes) const {
    int result = 0;
    do {
      result = ::fallocate(fd_.get(), 0, 0, bytes);
    } while (result != 0 && errno == EINTR);
    return result;
  }

  const std::string path_;
  base::UniqueFd fd_;
  base::UniqueFd direct_;
  uint64_t size_ = 0;
};

}  // namespace

std::unique_ptr<ShardSink> make_direct_file(const std::string& path, uint64_t bytes) {
  return std::make_unique<DirectFile>(path, bytes);
}

}  // namespace lockstep::checkpoint_files
