#pragma once

#include <atomic>

#include "base/byte_source.h"

namespace lockstep::storage {

// A file whose bytes this process alone reads, and once: past the page cache (O_DIRECT), which is
// faster, costs a tenth of the processor's time and leaves the cache as it was. Small reads go the
// usual way, and all of them if half of the file is cached when it is opened, or on file systems
// other than ext4 and XFS. Threads: const methods may be called concurrently; read_parallel() gives
// it enough to do.
class DirectSource : public base::ByteSource {
 public:
  explicit DirectSource(std::string path);

  const std::string& name() const override { return file_.name(); }
  uint64_t size() const override { return file_.size(); }
  bool is_direct() const { return is_direct_; }

 private:
  void read_inside(uint64_t offset, std::span<std::byte> bytes) const override;
  // How many bytes came; fewer than asked for at the file's end, none if the kernel refuses.
  size_t read_uncached(uint64_t offset, std::span<std::byte> bytes) const;
  size_t read_direct(uint64_t offset, std::span<std::byte> bytes) const;
  size_t read_aligned(uint64_t offset, std::span<std::byte> bytes) const;

  base::FileSource file_;
  base::UniqueFd direct_;
  mutable std::atomic<bool> is_direct_ = false;  // until the kernel refuses
};

}  // namespace lockstep::storage
