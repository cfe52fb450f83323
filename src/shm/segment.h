#pragma once

// Memory that processes of one host share: a memfd, filled (so that no access can run out of
// memory later), sealed (so that nobody can shrink it under a reader), and without a name anywhere.
// It is gone when the last process that maps it is, however that ends.

#include <atomic>
#include <cstddef>
#include <memory>

#include "base/unique_fd.h"

namespace lockstep::shm {

// This process's own shared memory: `bytes()` of it at data(), zero at first, aligned to a page.
// The address never changes, and the memory lives as long as this object, whatever becomes of the
// groups it was used in. Threads: may be used concurrently except for renew() and close_fd().
class Segment : public std::enable_shared_from_this<Segment> {
 public:
  // Throws IoError, with the limits that matter, if there is not enough memory.
  static std::shared_ptr<Segment> create(size_t bytes);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  // The segment of this process that holds all of [data, data + bytes), or null.
  static std::shared_ptr<Segment> find(const void* data, size_t bytes);

  std::byte* data() const;
  size_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }  // to be passed to the others; -1 once it is closed
  // Everybody maps it: the descriptor is of no more use, and open files are limited.
  void close_fd() { fd_.reset(); }

  // Puts fresh memory with the same contents under the same addresses. Whoever mapped the old one
  // (a stopped rank of a group that failed, say) can write only there from now on.
  void renew();

 private:
  explicit Segment(size_t bytes);

  size_t bytes_ = 0;
  base::UniqueFd fd_;
  base::Mapping mapping_;
};

// Another process's segment, mapped here.
class PeerSegment {
 public:
  // Checks that it is a segment: sealed, of the size it says. Throws FormatError.
  explicit PeerSegment(const base::UniqueFd& fd);

  std::byte* data() const;
  size_t bytes() const { return bytes_; }

  // True once its owner has freed it.
  bool released() const;

 private:
  size_t bytes_ = 0;
  base::Mapping mapping_;
};

}  // namespace lockstep::shm
