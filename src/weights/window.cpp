#include "weights/window.h"

#include <map>
#include <optional>
#include <sys/mman.h>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/base/error.h>

#include "base/round.h"
#include "base/unique_fd.h"
#include "comm/agree.h"
#include "weights/plan.h"

namespace lockstep::weights {

namespace {

// Behind each chunk, its reader's word on it: in the first byte, 1 if it could not be read.
constexpr uint64_t kNoteBytes = kPageBytes;

// Returns at least this much of the group's memory, from a page on, as direct reads want it.
at::Tensor allocate_pages(Group& group, uint64_t bytes) {
  const at::Tensor memory = group.allocate(static_cast<int64_t>(bytes + kPageBytes));
  const auto address = reinterpret_cast<uintptr_t>(memory.const_data_ptr());
  const uint64_t before = base::rounded_up<uint64_t>(address, kPageBytes) - address;
  return memory.narrow(0, static_cast<int64_t>(before), static_cast<int64_t>(bytes));
}

// A rank for itself.
class OwnWindow : public Window {
 public:
  explicit OwnWindow(uint64_t chunk_bytes)
      : Window(1, 0),
        chunk_bytes_(chunk_bytes),
        memory_(-1, chunk_bytes * kNumSlots, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS) {}

  std::span<std::byte> slot(uint64_t round) override { return {data(round), chunk_bytes_}; }
  bool share(uint64_t /*round*/, bool is_good) override { return is_good; }
  std::span<const std::byte> chunk(uint64_t round, uint64_t /*reader*/) const override {
    return {data(round), chunk_bytes_};
  }

 private:
  std::byte* data(uint64_t round) const {
    return memory_.data() + round % kNumSlots * chunk_bytes_;
  }

  const uint64_t chunk_bytes_;
  const base::Mapping memory_;
};

// Ranks of one node see each other's slots; the ranks at the same place on each node, a rail, send
// each other their chunks, so that every chunk comes to a node once. A slot has a place for each
// rank of the rail.
class SharedWindow : public Window {
 public:
  struct Groups {
    Group local;
    std::optional<Group> rail;  // nothing: all ranks are in `local`

    uint64_t num_places() const { return rail ? static_cast<uint64_t>(rail->size()) : 1; }
    uint64_t place() const { return rail ? static_cast<uint64_t>(rail->rank()) : 0; }
    uint64_t num_local() const { return static_cast<uint64_t>(local.size()); }
    uint64_t rank() const { return static_cast<uint64_t>(local.rank()); }
  };

  // Every rank reads.
  SharedWindow(Groups groups, uint64_t chunk_bytes)
      : SharedWindow(groups, chunk_bytes, groups.num_places() * groups.num_local(),
                     groups.place() * groups.num_local() + groups.rank()) {}

  // Only some of the ranks read.
  SharedWindow(Groups groups, uint64_t chunk_bytes, uint64_t num_readers,
               std::optional<uint64_t> reader)
      : Window(num_readers, reader),
        groups_(std::move(groups)),
        chunk_bytes_(chunk_bytes),
        place_bytes_(chunk_bytes + kNoteBytes),
        slot_bytes_(groups_.num_places() * place_bytes_),
        memory_(allocate_pages(groups_.local, kNumSlots * slot_bytes_)),
        views_(groups_.local.local_views(memory_)) {
    for (const at::Tensor& view : views_) {
      slots_.push_back(static_cast<std::byte*>(view.mutable_data_ptr()));
    }
  }

  std::span<std::byte> slot(uint64_t round) override {
    return {place(groups_.rank(), round, groups_.place()), chunk_bytes_};
  }

  bool share(uint64_t round, bool is_good) override {
    slot(round).data()[chunk_bytes_] = std::byte{is_good ? uint8_t{0} : uint8_t{1}};
    if (groups_.rail) {
      const at::Tensor all =
          memory_.narrow(0, static_cast<int64_t>(round % kNumSlots * slot_bytes_),
                         static_cast<int64_t>(slot_bytes_));
      const at::Tensor own = all.narrow(0, static_cast<int64_t>(groups_.place() * place_bytes_),
                                        static_cast<int64_t>(place_bytes_));
      groups_.rail->all_gather(all, own);
      if (groups_.rail->traffic().network_bytes_sent == 0) {  // it does not count for itself
        count_sent((groups_.num_places() - 1) * place_bytes_);
      }
    }
    groups_.local.barrier();
    bool all_good = true;
    for (size_t rank = 0; rank < slots_.size(); ++rank) {
      for (uint64_t which = 0; which < groups_.num_places(); ++which) {
        all_good = all_good && place(rank, round, which)[chunk_bytes_] == std::byte{0};
      }
    }
    return all_good;
  }

  std::span<const std::byte> chunk(uint64_t round, uint64_t reader) const override {
    return {place(reader % slots_.size(), round, reader / slots_.size()), chunk_bytes_};
  }

 private:
  std::byte* place(size_t rank, uint64_t round, uint64_t which) const {
    return slots_[rank] + round % kNumSlots * slot_bytes_ + which * place_bytes_;
  }

  Groups groups_;
  const uint64_t chunk_bytes_;
  const uint64_t place_bytes_;
  const uint64_t slot_bytes_;
  const at::Tensor memory_;
  const std::vector<at::Tensor> views_;  // of every local rank's memory
  std::vector<std::byte*> slots_;
};

// Rank 0's chunks to all, where they do not all see its memory.
class BroadcastWindow : public Window {
 public:
  BroadcastWindow(Group group, uint64_t chunk_bytes)
      : Window(1, group.rank() == 0 ? std::optional<uint64_t>(0) : std::nullopt),
        group_(std::move(group)),
        chunk_bytes_(chunk_bytes),
        slot_bytes_(chunk_bytes + kNoteBytes),
        memory_(allocate_pages(group_, kNumSlots * slot_bytes_)) {}

  std::span<std::byte> slot(uint64_t round) override { return {data(round), chunk_bytes_}; }

  bool share(uint64_t round, bool is_good) override {
    if (group_.rank() == 0) {
      data(round)[chunk_bytes_] = std::byte{is_good ? uint8_t{0} : uint8_t{1}};
    }
    group_.broadcast(memory_.narrow(0, static_cast<int64_t>(round % kNumSlots * slot_bytes_),
                                    static_cast<int64_t>(slot_bytes_)));
    return data(round)[chunk_bytes_] == std::byte{0};
  }

  std::span<const std::byte> chunk(uint64_t round, uint64_t /*reader*/) const override {
    return {data(round), chunk_bytes_};
  }

 private:
  std::byte* data(uint64_t round) const {
    return static_cast<std::byte*>(memory_.mutable_data_ptr()) + round % kNumSlots * slot_bytes_;
  }

  Group group_;
  const uint64_t chunk_bytes_;
  const uint64_t slot_bytes_;
  const at::Tensor memory_;
};

// Nodes that have not all as many ranks make no rails: there all ranks are one.
std::unique_ptr<Window> make_cooperative_window(Group& group, const Neighbours& neighbours,
                                                uint64_t chunk_bytes) {
  using Groups = SharedWindow::Groups;
  if (neighbours.num_nodes == 1) {
    return std::make_unique<SharedWindow>(Groups{group, std::nullopt}, chunk_bytes);
  }
  if (neighbours.num_local == 1 || !neighbours.is_even) {
    return std::make_unique<SharedWindow>(Groups{make_single_group(), group}, chunk_bytes);
  }
  Group local = group.split(neighbours.node, group.rank());
  Group rail = group.split(local.rank(), group.rank());
  return std::make_unique<SharedWindow>(Groups{std::move(local), std::move(rail)}, chunk_bytes);
}

std::unique_ptr<Window> make_rank0_window(Group& group, const Neighbours& neighbours,
                                          uint64_t chunk_bytes) {
  if (neighbours.num_nodes > 1) {
    return std::make_unique<BroadcastWindow>(group, chunk_bytes);
  }
  const auto reader = group.rank() == 0 ? std::optional<uint64_t>(0) : std::nullopt;
  return std::make_unique<SharedWindow>(SharedWindow::Groups{group, std::nullopt}, chunk_bytes, 1,
                                        reader);
}

}  // namespace

Neighbours find_neighbours(Group& group) {
  const std::vector<int> local = group.local_ranks();
  const std::vector<int64_t> nodes = comm::gather_numbers(group, local.front());
  std::map<int64_t, size_t> counts;
  for (const int64_t node : nodes) {
    ++counts[node];
  }
  Neighbours neighbours{.num_nodes = static_cast<int>(counts.size()),
                        .num_local = static_cast<int>(local.size()),
                        .node = local.front()};
  for (const auto& [node, count] : counts) {
    neighbours.is_even = neighbours.is_even && count == local.size();
  }
  return neighbours;
}

std::unique_ptr<Window> make_window(Group& group, const Neighbours& neighbours,
                                    WindowOptions options) {
  switch (options.mode) {
    case LoadMode::Each:
      return std::make_unique<OwnWindow>(options.chunk_bytes);
    case LoadMode::Rank0:
      return make_rank0_window(group, neighbours, options.chunk_bytes);
    case LoadMode::Cooperative:
      return make_cooperative_window(group, neighbours, options.chunk_bytes);
    case LoadMode::Auto:
      break;
  }
  throw InternalError("a window for no mode");
}

}  // namespace lockstep::weights
