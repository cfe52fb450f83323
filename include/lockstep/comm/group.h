#pragma once

// Group: the ranks that train one model together, and the collectives between them.
//
//   auto group = lockstep::init();
//   auto x = torch::full({3}, group.rank() + 1.0);
//   group.all_reduce(x, {.op = ReduceOp::Average});     // the same on every rank from here on
//
// Every rank of the group must make the same calls in the same order. Each operation comes in two
// forms: `all_reduce` returns when the result is there, `all_reduce_async` at once, with a Work. In
// a group of one every operation is (nearly) free, so that programs need no `if (group.size() >
// 1)`.
//
// Tensors must be dense CPU tensors and contiguous; a wrong device, layout, type or shape is a
// UsageError before anything is sent, and the group stays usable. Types: float32, float64, float16,
// bfloat16, int8, uint8, int32, int64 and bool; see ReduceOp for what may be reduced.
//
// Errors: every wait has a deadline (GroupOptions::timeout, or the operation's own). A dead rank is
// a PeerLostError on all others within a second (a lost host or link: three), a late one a
// TimeoutError that names it, and ranks that call different operations get a DesyncError with both
// calls (on plain gloo only with LOCKSTEP_CHECK_COLLECTIVES=1). After any of these the group throws
// the same error for ever; make a new one (make_group) in the same processes. What an operation
// that failed was to write is undefined.
//
// Where ranks share a host, their data moves through shared memory; see BackendChoice. Tensors from
// allocate() are reduced where they lie; all others are copied on the way. Sums have one fixed
// order (a binary tree over the ranks), whatever the size, type or timing: two runs give the same
// bits. docs/concepts/comm.md tells how.
//
// Threads: one thread at a time may start operations (their order matters); Work may be waited for
// anywhere. A Group is a handle: copies stand for the same group, which ends with the last copy.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/comm/store.h>
#include <lockstep/comm/work.h>

namespace at {
class Tensor;
}

namespace lockstep {

// Sum, Min, Max, Product: all types but bool. Average: floating types (the sum, then one division).
// BitAnd, BitOr: integers and bool (for bool: "all" and "any").
enum class ReduceOp { Sum, Average, Min, Max, Product, BitAnd, BitOr };

inline constexpr std::chrono::milliseconds kDefaultTimeout = std::chrono::minutes(30);
inline constexpr std::chrono::milliseconds kGroupTimeout{0};  // "the group's own"

struct WaitOptions {
  std::chrono::milliseconds timeout = kGroupTimeout;
};

struct ReduceOptions {
  ReduceOp op = ReduceOp::Sum;
  std::chrono::milliseconds timeout = kGroupTimeout;
};

struct BroadcastOptions {
  int root = 0;  // whose values everybody gets
  std::chrono::milliseconds timeout = kGroupTimeout;
};

struct AllToAllOptions {
  // Rows (of dimension 0) that go to and come from each rank; empty: equally many for each.
  std::vector<int64_t> input_splits;
  std::vector<int64_t> output_splits;
  std::chrono::milliseconds timeout = kGroupTimeout;
};

struct MessageOptions {
  int tag = 0;  // in [0, 65535]: a recv matches the send with the same peer and tag, in order
  std::chrono::milliseconds timeout = kGroupTimeout;
};

// How bytes move. Auto: Shm if all ranks share a host, Gloo if no two do, Hierarchical otherwise;
// LOCKSTEP_BACKEND=auto|gloo|shm|hierarchical overrides Auto.
enum class BackendChoice {
  Auto,
  Gloo,         // TCP between all ranks, by libtorch's Gloo
  Shm,          // shared memory: ranks of one host only
  Hierarchical  // shared memory inside a host, Gloo between hosts: the least bytes on the network
};

// In what form Hierarchical sends float32 between hosts. The sums themselves are float32.
enum class WireType { Full, BFloat16, Float16 };

// Bytes of tensors (not of protocol) that this rank sent to other hosts. Counted by Hierarchical.
struct Traffic {
  uint64_t network_bytes_sent = 0;
};

namespace comm {
class Backend;
struct Call;
}  // namespace comm

class Group {
 public:
  explicit Group(std::shared_ptr<comm::Backend> backend);

  int rank() const;  // in [0, size())
  int size() const;
  uint64_t id() const;  // no other group of this process has it, also after this one's end
  std::string backend_name() const;  // "single", "gloo", "shm", "hierarchical"
  std::chrono::milliseconds timeout() const;

  // The store this group was made over; throws UsageError in a group of one that has none.
  Store store() const;

  // Collective: `bytes` of memory (a uint8 tensor; view it as what you need) that the group
  // reduces, gathers and broadcasts where it lies, without a copy. Zero at first. The memory lives
  // as long as the tensor or a view of it, also after the group. Without shared memory it is
  // ordinary memory.
  at::Tensor allocate(int64_t bytes);

  // Collective: makes memory that came from another group's allocate() this group's, at the same
  // address and with the same contents; that group has no part in it any more. `tensor` is the
  // whole of it.
  void rebind(const at::Tensor& tensor);

  // The ranks that share memory with this one, itself among them, in order: all of the group on
  // shm, those of its node on hierarchical, itself alone on gloo.
  std::vector<int> local_ranks() const;

  // Memory from allocate(), or a part of it, as each of local_ranks() has it: what one of them
  // wrote before a barrier() the others may read after it. A view keeps its memory alive.
  std::vector<at::Tensor> local_views(const at::Tensor& memory) const;

  // Collective: ranks with the same color become a group of their own, in the order of their keys
  // (equal keys: of their ranks). A rank with a negative color gets a group of one.
  Group split(int color, int key = 0) const;

  Traffic traffic() const;

  // In place: every rank gets the reduction of all ranks' tensors.
  void all_reduce(const at::Tensor& tensor, ReduceOptions options = {});
  Work all_reduce_async(const at::Tensor& tensor, ReduceOptions options = {});

  // In place: every rank gets the root's values.
  void broadcast(const at::Tensor& tensor, BroadcastOptions options = {});
  Work broadcast_async(const at::Tensor& tensor, BroadcastOptions options = {});

  // `output` gets the inputs of rank 0, 1, ... one behind the other: size() times as many elements.
  void all_gather(const at::Tensor& output, const at::Tensor& input, WaitOptions options = {});
  Work all_gather_async(const at::Tensor& output, const at::Tensor& input,
                        WaitOptions options = {});

  // `output` gets this rank's part of the reduction: `input` has size() times as many elements.
  void reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                      ReduceOptions options = {});
  Work reduce_scatter_async(const at::Tensor& output, const at::Tensor& input,
                            ReduceOptions options = {});

  // Part r of `input` goes to rank r; part r of `output` comes from it.
  void all_to_all(const at::Tensor& output, const at::Tensor& input, AllToAllOptions options = {});
  Work all_to_all_async(const at::Tensor& output, const at::Tensor& input,
                        AllToAllOptions options = {});

  // Between two ranks; the other one calls recv (send) with the same tag, type and number of
  // elements.
  void send(const at::Tensor& tensor, int to, MessageOptions options = {});
  Work send_async(const at::Tensor& tensor, int to, MessageOptions options = {});
  void recv(const at::Tensor& tensor, int from, MessageOptions options = {});
  Work recv_async(const at::Tensor& tensor, int from, MessageOptions options = {});

  // Returns when every rank has called it.
  void barrier(WaitOptions options = {});
  Work barrier_async(WaitOptions options = {});

 private:
  void run(comm::Call call, std::chrono::milliseconds timeout);
  Work start(comm::Call call, std::chrono::milliseconds timeout);

  std::shared_ptr<comm::Backend> backend_;
};

struct GroupOptions {
  std::string name;  // REQUIRED for more than one rank: the same on all ranks, used once per store
  int rank = 0;      // in [0, size)
  int size = 1;
  std::chrono::milliseconds timeout =
      kDefaultTimeout;  // of operations that name none, and of this call
  BackendChoice backend = BackendChoice::Auto;
  WireType wire = WireType::Full;  // LOCKSTEP_WIRE=full|bfloat16|float16 overrides Full
};

// A group of one, without a store.
Group make_single_group();

// Collective over the ranks named: returns when all have called it and are connected. Also the way
// to go on after an error: the survivors agree on new ranks and a new name and make a group of what
// is left.
Group make_group(const Store& store, GroupOptions options);

}  // namespace lockstep
