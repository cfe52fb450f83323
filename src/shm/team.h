#pragma once

// The ranks of one host in the collectives: raw pointers in, results out, by the calling thread.
//
// A rank's data is either in a bound buffer, which every rank of the team maps, and is then reduced
// or read where it lies; or in ordinary memory, and goes through a slot of the rank's arena: small
// data whole, before the ranks meet (or it is added to a sibling's, see Team::join), large data in
// chunks, three at a time, so that copying in, reducing and copying out overlap. Results do not
// depend on the way (see kernels.h for the order of summation). docs/concepts/shm.md tells
// which algorithm runs when, and the bytes each moves.
//
// The ranks of a team are processes that map each other's arenas; in tests also threads.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/deadline.h"
#include "shm/arena.h"
#include "shm/kernels.h"
#include "shm/protocol.h"
#include "shm/segment.h"
#include "shm/tactics.h"
#include "shm/types.h"

namespace lockstep::shm {

// One operation, as one rank sees it.
struct Task {
  Kind kind = Kind::Barrier;
  DataType type = DataType::UInt8;
  Reduction reduction = Reduction::Sum;
  int root = 0;
  // Elements: of the tensor (AllReduce, Broadcast), of the input (AllGather), of the output
  // (ReduceScatter). The same on every rank.
  size_t count = 0;
  const void* input = nullptr;
  void* output = nullptr;  // AllReduce, Broadcast: the same as input
  // AllToAll: elements to and from each rank.
  std::span<const int64_t> input_splits;
  std::span<const int64_t> output_splits;
  int divisor = 0;       // Average: 0 stands for the size of the team
  int64_t sequence = 0;  // the number by which errors name it
  // What ranks compare and errors name, if this is a step of something larger.
  std::optional<CallId> part_of;
  base::Deadline deadline = base::Deadline::never();
};

// Ranks called different operations: thrown, on one of them, before anything was moved.
struct Disagreement {
  int rank = 0;  // the first rank that differs from rank 0
  CallId theirs;
  CallId of_rank_0;
};

// A rank left the team and will never come to the operation that others wait for it in.
struct Departed {
  int rank = 0;
};

// all_to_all: a rank sends this one another number of elements than it expects.
struct SplitMismatch {
  int rank = 0;
  uint64_t sent = 0;
  uint64_t expected = 0;
};

// A slice of the node's buffers, in the hands of an Exchange (see Team::reduce_exchange): what is
// reduced in the node goes into `partial`, in the accumulator's type; what is in there is written
// to every rank. Both in parts, so that the first part can travel while the next one is reduced.
struct ExchangeSlice {
  std::byte* partial = nullptr;
  size_t count = 0;                                        // elements
  std::function<void(size_t begin, size_t count)> reduce;  // ranks' values -> partial
  std::function<void(size_t begin, size_t count)> write;   // partial -> ranks
};

class Exchange {
 public:
  virtual ~Exchange() = default;
  // Reduces all parts of the slice, combines them with the other nodes', and writes all of it.
  virtual void exchange(const ExchangeSlice& slice) = 0;
};

// A buffer that all ranks map: where each rank's copy of it begins, in this process.
struct Binding {
  std::byte* own = nullptr;
  size_t bytes = 0;
  std::vector<std::byte*> addresses;               // of every rank; own at this rank's place
  std::vector<std::shared_ptr<PeerSegment>> keep;  // what the addresses point into
  std::weak_ptr<const void> owner;                 // expired: freed here, the address is void
};

// A part of a bound buffer, as one rank has it.
struct SharedPart {
  std::byte* data = nullptr;
  std::shared_ptr<PeerSegment> keep;  // what it points into; null for this rank's own
};

class PieceMap;

// Threads: one at a time, except interrupt().
class Team {
 public:
  // `arenas` are the mapped arenas of all ranks, each of arena_layout(size).bytes, zero at the
  // start. Whether every rank has a core of its own is found when they first synchronise, by
  // the cores that they may use; `num_cores` says it instead.
  Team(int rank, std::vector<std::byte*> arenas, std::optional<int> num_cores = {});

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Those that all ranks may use together; this rank's own before their first operation.
  int num_cores() const { return num_cores_; }

  // Collective, and the same one everywhere: each rank binds its copy of the same buffer.
  void bind(Binding binding);
  bool is_bound(const void* data, size_t bytes) const { return locate(data, bytes).buffer != 0; }
  // The same part of every rank's copy; empty if it is not bound.
  std::vector<SharedPart> parts_of(const void* data, size_t bytes) const;
  // Lets go of what was freed, here or by the other ranks.
  void sweep();

  // Throws Stopped, Disagreement, Departed or SplitMismatch; the team is of no use then.
  void run(const Task& task);

  // An AllReduce of bound buffers in which slice i of `num_slices` is rank i's, to reduce, exchange
  // and write. Ranks from num_slices on only take part with their data.
  void reduce_exchange(const Task& task, int num_slices, Exchange& exchange);

  void interrupt() { protocol_.interrupt(); }
  void depart();

 private:
  using Counter = Words<Platform>::Counter;

  enum class Direction { In, Out };
  struct Part;  // what this rank takes from another one's input

  // team.cpp: synchronising, and where things are
  Location locate(const void* data, size_t bytes) const;
  enum class Alone { Reduce, Only };  // what the last rank to arrive does with tiny data
  void meet(const Task& task, Alone alone = Alone::Reduce);  // everything until the gate
  void announce(const Task& task, Alone alone);
  bool join(const Task& task) const;
  void pass_gate(const Task& task, Alone alone);
  void pass_marks(const Task& task);
  void publish_cores() const;
  void count_cores();
  void begin_alone(const Task& task, Alone alone);
  void compare_announcements() const;
  void find_departed() const;
  void spread_ranks() const;  // over the cores, if they have to share them
  void await_gate(base::Deadline deadline);
  void await(Counter& counter, uint64_t target, base::Deadline deadline);
  void signal(Counter& counter, uint64_t target) { protocol_.signal(counter, target); }
  // This rank is through the phase (of the chunk); every rank is.
  void pass(Phase phase, size_t chunk = 0);
  void await_all(Phase phase, size_t chunk, base::Deadline deadline);
  Counter& counter_of(Phase phase, size_t chunk);
  uint64_t target_of(size_t chunk) const;
  uint64_t mark_of(size_t chunk) const;
  void finish(const Task& task);  // returns when every rank has called it
  void stop_if_interrupted() const;
  const Announcement& announcement(int rank) const;
  Announcement& own_announcement() const;
  RankStatus& status(int rank) const;
  bool all_bound() const;                               // every rank's data is in a bound buffer
  static int sibling_of(int rank) { return rank ^ 1; }  // in the tree; the last rank may have none
  std::byte* shared_input(int rank) const;
  std::byte* slot(int rank) const;
  std::byte* chunk_slot(int rank, size_t chunk) const;
  std::byte* sum_slot(int rank, size_t chunk) const;
  // Every rank's input, if it is not in place, goes whole into a slot before the ranks meet.
  bool is_small(const Task& task) const;
  // So little that the last rank to arrive does the whole reduction before the others wake.
  bool is_for_one(const Task& task) const;
  bool is_flat(const Task& task) const;  // through the slots, even from bound buffers

  // reduce.cpp
  void gather_inputs();                         // finds every rank's data of this operation
  void* const* inputs_at(size_t offset_bytes);  // the same elements of each
  int divisor(const Task& task) const;
  void all_reduce(const Task& task);
  void reduce_scatter(const Task& task);
  void reduce_range(const Task& task, void* const* data, size_t count);
  void reduce_alone(const Task& task);
  void reduce_flat(const Task& task);
  void reduce_slice(const Task& task);
  void reduce_claimed(const Task& task);
  size_t claim();
  void exchange_slice(const Task& task, int num_slices, Exchange& exchange);
  void reduce_pipelined(const Task& task);
  void reduce_piece(const Task& task, const PieceMap& map, size_t chunk) const;
  void copy_pieces(const PieceMap& map, size_t chunk, std::byte* memory, size_t element,
                   Direction direction) const;

  // move.cpp
  void move(const Task& task);
  void move_pipelined(const Task& task);
  void take_chunk(const Task& task, size_t chunk) const;
  Part part_from(int rank, const Task& task) const;
  size_t input_bytes(int rank, const Task& task) const;
  const uint64_t* splits_of(int rank) const;
  void check_splits(const Task& task) const;

  const int rank_;
  const int size_;
  const std::vector<std::byte*> arenas_;
  const ArenaLayout layout_;
  Protocol<Platform> protocol_;
  const std::vector<int> usable_cores_;
  const bool counts_cores_;
  int num_cores_;  // that all ranks may use together; this rank's own until they have met
  Tactics tactics_;
  uint64_t num_taken_ = 0;  // claims of all ranks in the operations before
  uint64_t round_ = 0;      // operations so far: k of protocol.h
  uint32_t next_buffer_ = 1;
  std::map<uint32_t, Binding> bindings_;
  std::map<const std::byte*, uint32_t> buffer_at_;  // by own address
  // Scratch of the operation, kept so that small ones allocate nothing.
  std::vector<std::byte*> inputs_;
  std::vector<void*> pointers_;
  std::vector<void*> leaves_;
  std::vector<void*> outputs_;
  std::vector<std::byte> partial_;  // of reduce_exchange
};

// For tests: called by every rank of this process at each step of an operation, to halt, kill or
// delay it there.
enum class State { Announce, Join, Arrive, Alone, Enter, Work, Signal, Leave };
using StateHook = void (*)(State state);
void set_state_hook(StateHook hook);

}  // namespace lockstep::shm
