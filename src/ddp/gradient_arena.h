#pragma once

// Large gradients, written by autograd straight into the group's memory.
//
// A gradient is a tensor that some operation of backward allocates. While a backward runs, this
// thread's allocations that are exactly as large as a large parameter are served from cells of the
// group's memory; what then turns out to be that parameter's gradient is where it should be,
// without a copy. Anything else that got a cell (an activation of the same size) gives it back when
// it is freed, and a request that finds no free cell gets ordinary memory.

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::ddp {

// Threads: cells may be given back on any thread.
class GradientArena {
 public:
  // `memory` is cut into cells of these sizes, one after another.
  static std::shared_ptr<GradientArena> make(at::Tensor memory,
                                             const std::vector<int64_t>& cell_bytes);
  static int64_t room_for(const std::vector<int64_t>& cell_bytes);

  // No cell is wanted any more: the memory ends with the last tensor in it.
  void retire();

  // Serves the allocations of this thread while it lives.
  class Scope {
   public:
    explicit Scope(std::shared_ptr<GradientArena> arena);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    std::shared_ptr<GradientArena> before_;
  };

  bool contains(const void* data) const { return data >= begin() && data < end(); }
  const std::byte* begin() const { return static_cast<const std::byte*>(memory_.const_data_ptr()); }
  const std::byte* end() const { return begin() + memory_.nbytes(); }

  // A cell of exactly so many bytes; null if there is none free.
  void* take(size_t bytes);
  // True: that was the last one of a retired arena.
  bool give_back(void* cell);

 private:
  explicit GradientArena(at::Tensor memory) : memory_(std::move(memory)) {}

  const at::Tensor memory_;
  std::mutex mutex_;
  std::map<size_t, std::vector<void*>> free_;  // by size
  std::map<void*, size_t> taken_;
  bool is_retired_ = false;
};

}  // namespace lockstep::ddp
