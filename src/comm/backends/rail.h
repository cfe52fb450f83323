#pragma once

// One rank's way to the other nodes: its rail (see hierarchical_backend.h).

#include <atomic>
#include <memory>

#include "comm/backends/backend.h"
#include "comm/membership.h"
#include "shm/arena.h"
#include "shm/team.h"

namespace lockstep::comm {

struct RailOptions {
  std::shared_ptr<Membership> membership;
  std::shared_ptr<Backend> gloo;  // rank = node, size = number of nodes
  std::vector<int> ranks;         // of the rail, in the group
  WireType wire = WireType::Full;
};

// Threads: one at a time.
class Rail {
 public:
  explicit Rail(RailOptions options);

  int num_nodes() const { return options_.gloo->size(); }

  // The nodes compare their calls: a difference is a DesyncError on every rank of the group.
  void compare(const Call& call) { exchange_frames(call, nullptr, 0); }

  // A slice of this node, and what its partial results are.
  struct Slice {
    const shm::ExchangeSlice& node;
    shm::DataType type = shm::DataType::Float32;
    shm::Reduction reduction = shm::Reduction::Sum;

    shm::ReduceKernel kernel() const;
  };
  // Reduces the slice over all nodes.
  void all_reduce(const Call& call, const Slice& slice);

  // `slice` of the node `root` goes to all.
  void broadcast(const Call& call, const at::Tensor& slice, int root);

  uint64_t bytes_sent() const { return bytes_sent_.load(); }

 private:
  // Part of a slice that is sent, summed and sent back by itself.
  struct Block {
    size_t begin = 0;  // in the slice; elements, as the next two
    size_t count = 0;
    size_t part = 0;    // of each node
    size_t offset = 0;  // bytes, in send_ and receive_
    std::shared_ptr<WorkState> work;

    size_t part_count(size_t node) const;
  };

  // How a part of a block travels: as `type` and, where numbers may not fit it, with a scale.
  struct Wire {
    shm::DataType type = shm::DataType::Float32;
    bool has_scale = false;

    size_t part_bytes(const Block& block) const;
  };

  static std::byte* place(const Slice& slice, const Block& block, size_t node);
  void reduce_inline(const Call& call, const Slice& slice);
  void scatter(const Call& call, const Slice& slice, const Wire& wire, Block& block);
  void sum_and_gather(const Call& call, const Slice& slice, const Wire& wire, Block& block);
  void collect(const Slice& slice, const Wire& wire, const Block& block);
  static Wire wire_of(WireType wanted, const Slice& slice);
  void pack(std::byte* to, const Wire& wire, const std::byte* from, const Slice& slice,
            size_t count);
  static void unpack(std::byte* to, const Slice& slice, const std::byte* from, const Wire& wire,
                     size_t count);

  at::Tensor exchange_frames(const Call& call, const void* data, size_t bytes);
  std::shared_ptr<WorkState> start(const Call& call, Call step);
  void run(const Call& call, Call step);

  const RailOptions options_;
  std::atomic<uint64_t> bytes_sent_{0};
  at::Tensor send_;  // kept between calls: fresh memory of this size costs more than the sums
  at::Tensor receive_;
  at::Tensor wide_;
  at::Tensor scaled_;
};

}  // namespace lockstep::comm
