#include "ddp/gradient_arena.h"

#include <shared_mutex>

#include <c10/core/CPUAllocator.h>

#include "base/round.h"

namespace lockstep::ddp {
namespace {

constexpr int64_t kPageBytes = 4096;

thread_local std::shared_ptr<GradientArena> serving_arena;

// All arenas that have, or may have, tensors: whose memory it is can be told from the address.
class Registry {
 public:
  void add(std::shared_ptr<GradientArena> arena) {
    const std::unique_lock lock(mutex_);
    arenas_[arena->end()] = std::move(arena);
  }
  void remove(const GradientArena& arena) {
    std::shared_ptr<GradientArena> last;  // ends outside the lock
    const std::unique_lock lock(mutex_);
    const auto found = arenas_.find(arena.end());
    if (found != arenas_.end()) {
      last = std::move(found->second);
      arenas_.erase(found);
    }
  }
  std::shared_ptr<GradientArena> find(const void* data) {
    const std::shared_lock lock(mutex_);
    const auto next = arenas_.upper_bound(static_cast<const std::byte*>(data));
    return next != arenas_.end() && next->second->contains(data) ? next->second : nullptr;
  }

  static Registry& instance() {
    static auto* const registry = new Registry;  // never deleted: tensors may outlive statics
    return *registry;
  }

 private:
  std::shared_mutex mutex_;
  std::map<const std::byte*, std::shared_ptr<GradientArena>> arenas_;  // by their ends
};

// Stands before libtorch's allocator, for good: tensors remember who made them. As that one does,
// it makes pointers that are their own context and all have one deleter, which is what libtorch's
// raw allocations need.
class ServingAllocator : public c10::Allocator {
 public:
  explicit ServingAllocator(c10::Allocator* behind) { behind_ = behind; }

  c10::DataPtr allocate(size_t bytes) override {
    if (serving_arena) {
      if (void* const cell = serving_arena->take(bytes)) {
        return {cell, cell, release, c10::Device(c10::DeviceType::CPU)};
      }
    }
    c10::DataPtr data = behind_->allocate(bytes);
    (void)data.compare_exchange_deleter(behind_->raw_deleter(), release);
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override { return release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void release(void* data) {
    if (data == nullptr) {
      return;
    }
    if (const auto arena = Registry::instance().find(data)) {
      if (arena->give_back(data)) {
        Registry::instance().remove(*arena);
      }
    } else {
      behind_->raw_deleter()(data);
    }
  }

  static inline c10::Allocator* behind_ = nullptr;
};

// False: libtorch's allocator is not the usual one, and is left alone.
bool install_once() {
  static const bool is_installed = [] {
    c10::Allocator* const present = c10::GetCPUAllocator();
    if (present->raw_deleter() == nullptr) {
      return false;
    }
    c10::SetCPUAllocator(new ServingAllocator(present), /*priority=*/0);
    return true;
  }();
  return is_installed;
}

}  // namespace

int64_t GradientArena::room_for(const std::vector<int64_t>& cell_bytes) {
  int64_t room = 0;
  for (const int64_t bytes : cell_bytes) {
    room += base::rounded_up(bytes, kPageBytes);
  }
  return room;
}

std::shared_ptr<GradientArena> GradientArena::make(at::Tensor memory,
                                                   const std::vector<int64_t>& cell_bytes) {
  std::shared_ptr<GradientArena> arena(new GradientArena(std::move(memory)));
  if (!install_once()) {
    return arena;  // without cells: every gradient is copied
  }
  auto* cell = static_cast<std::byte*>(arena->memory_.mutable_data_ptr());
  for (const int64_t bytes : cell_bytes) {
    arena->free_[static_cast<size_t>(bytes)].push_back(cell);
    cell += base::rounded_up(bytes, kPageBytes);
  }
  Registry::instance().add(arena);
  return arena;
}

void GradientArena::retire() {
  {
    const std::lock_guard lock(mutex_);
    is_retired_ = true;
    if (!taken_.empty()) {
      return;
    }
  }
  Registry::instance().remove(*this);
}

void* GradientArena::take(size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto cells = free_.find(bytes);
  if (cells == free_.end() || cells->second.empty() || is_retired_) {
    return nullptr;
  }
  void* const cell = cells->second.back();
  cells->second.pop_back();
  taken_[cell] = bytes;
  return cell;
}

bool GradientArena::give_back(void* cell) {
  const std::lock_guard lock(mutex_);
  const auto taken = taken_.find(cell);
  if (taken != taken_.end()) {
    free_[taken->second].push_back(cell);
    taken_.erase(taken);
  }
  return is_retired_ && taken_.empty();
}

GradientArena::Scope::Scope(std::shared_ptr<GradientArena> arena)
    : before_(std::exchange(serving_arena, std::move(arena))) {}

GradientArena::Scope::~Scope() {
  serving_arena = std::move(before_);
}

}  // namespace lockstep::ddp
