#pragma once

#include <atomic>

#include "base/byte_source.h"

namespace lockstep {

// A file whose bytes this process alone reads, and once: what the page cache has comes from there,
// the rest past it (O_DIRECT), which is faster and costs a tenth of the processor's time, and
// leaves the cache as it was. Small reads, and file systems other than ext4 and XFS, go the usual
// way. Threads: const methods may be called concurrently; read_parallel() gives it enough to do.
class DirectSource : public ByteSource {
 public:
  explicit DirectSource(std::string path);

  const std::string& name() const override { return file_.name(); }
  uint64_t size() const override { return file_.size(); }
  bool is_direct() const { return is_direct_; }

 private:
  void read_inside(uint64_t offset, std::span<std::byte> bytes) const override;
  bool is_cached(uint64_t offset, size_t size) const;
  // How many bytes came; fewer than asked for at the file's end, none if the kernel refuses.
  size_t read_uncached(uint64_t offset, std::span<std::byte> bytes) const;
  size_t read_direct(uint64_t offset, std::span<std::byte> bytes) const;
  size_t read_aligned(uint64_t offset, std::span<std::byte> bytes) const;

  FileSource file_;
  UniqueFd direct_;
  mutable std::atomic<bool> is_direct_ = false;  // until the kernel refuses
};

}  // namespace lockstep
