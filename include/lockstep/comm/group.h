#pragma once

// Group: the ranks that train one model together, and the collectives between them.
//
// Example:
//   auto group = lockstep::init();
//   auto x = torch::full({3}, group.rank() + 1.0);
//   group.all_reduce(x, {.op = lockstep::ReduceOp::Average});  // x is now the same on every rank
//
// Every rank of the group makes the same calls in the same order. Each operation has two forms:
// `all_reduce` returns when the result is there, and `all_reduce_async` returns a Work at once. In
// a group of one every operation is nearly free, so programs need no `if (group.size() > 1)`.
//
// Tensors must be dense and contiguous, on the CPU or a CUDA device, of float32, float64, float16,
// bfloat16, int8, uint8, int32, int64 or bool; ReduceOp says what can be reduced. A wrong device,
// layout, type or shape is a UsageError on the rank that made it, before anything is sent, and the
// group stays usable.
//
// CUDA tensors are ordered by streams, as libtorch's own operations are: an operation comes after
// what the current stream had been given, and the current stream goes on after its result, for the
// thread that called the blocking form or wait(). They travel through pinned memory of the host,
// where the ranks add them: any number of ranks may share a GPU, and on shm and hierarchical the
// sums have the bits of the same sums on the CPU. A send returns once its tensor is on the host. In
// a collective the tensors of all ranks are on CUDA, or all on the CPU; a message may go from one
// to the other. A CUDA graph must not be captured while operations of a group are in flight.
//
// Errors: every wait has a deadline, which is the operation's own or GroupOptions::timeout.
//   PeerLostError   on all other ranks, within a second, when a rank has died; within three
//                   seconds when its host or link is lost
//   TimeoutError    when a rank is late; the message names it
//   DesyncError     when ranks call different operations, or one with a CUDA and one with a CPU
//                   tensor; the message shows both calls. Plain gloo compares calls only if
//                   LOCKSTEP_CHECK_COLLECTIVES=1
// After any of these the group is unusable: every later call throws the same error, and what the
// failed operation was to write is undefined. The process is unharmed: agree on the ranks that are
// left and call make_group() with a new name.
//
// Ranks that share a host exchange data through shared memory; see BackendChoice. Tensors from
// allocate() are reduced where they lie, and all others are copied on the way. On shm and
// hierarchical a sum has one fixed order, a binary tree over the ranks, whatever the size, the type
// and the timing, so two runs give the same bits. docs/concepts/comm.md tells how.
//
// Threads: one thread at a time may start operations, since their order matters. Any thread may
// wait for a Work. A Group is a handle: copies stand for the same group, which ends with the last
// copy.

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

// Sum, Min, Max and Product take all types but bool. Average takes floating types: it sums and
// divides once. BitAnd and BitOr take integers and bool (where they mean "all" and "any").
enum class ReduceOp { Sum, Average, Min, Max, Product, BitAnd, BitOr };

inline constexpr std::chrono::milliseconds kDefaultTimeout = std::chrono::minutes(30);
inline constexpr std::chrono::milliseconds kGroupTimeout{0};  // stands for the group's own timeout

struct WaitOptions {
  std::chrono::milliseconds timeout = kGroupTimeout;
};

struct ReduceOptions {
  ReduceOp op = ReduceOp::Sum;
  std::chrono::milliseconds timeout = kGroupTimeout;
};

struct BroadcastOptions {
  int root = 0;  // the rank whose values all others get
  std::chrono::milliseconds timeout = kGroupTimeout;
};

struct AllToAllOptions {
  // How many rows (of dimension 0) go to and come from each rank. Empty means equally many.
  std::vector<int64_t> input_splits;
  std::vector<int64_t> output_splits;
  std::chrono::milliseconds timeout = kGroupTimeout;
};

struct MessageOptions {
  int tag = 0;  // in [0, 65535]; a recv matches the send with the same peer and tag, in order
  std::chrono::milliseconds timeout = kGroupTimeout;
};

// How bytes move. Auto chooses Shm if all ranks share a host, Gloo if no two do, and Hierarchical
// otherwise. LOCKSTEP_BACKEND=auto|gloo|shm|hierarchical overrides Auto.
enum class BackendChoice {
  Auto,
  Gloo,         // TCP between all ranks, by libtorch's Gloo
  Shm,          // shared memory; all ranks must share a host
  Hierarchical  // shared memory inside a host, Gloo between hosts: fewest bytes on the network
};

// The form in which Hierarchical sends float32 between hosts. The sums themselves are float32.
enum class WireType { Full, BFloat16, Float16 };

// The bytes of tensors, without the protocol's, that this rank has sent to other hosts. Only
// Hierarchical counts them.
struct Traffic {
  uint64_t network_bytes_sent = 0;
};

namespace comm {
class Backend;  // private to the implementation, like Call
struct Call;
}  // namespace comm

class Group {
 public:
  explicit Group(std::shared_ptr<comm::Backend> backend);  // only init() and make_group() call this

  int rank() const;                  // in [0, size())
  int size() const;                  // the number of ranks
  uint64_t id() const;               // unique in this process, even after this group has ended
  std::string backend_name() const;  // "single", "gloo", "shm" or "hierarchical"
  std::chrono::milliseconds timeout() const;

  // The store over which this group was made. Throws UsageError in a group of one that has none.
  Store store() const;

  // Collective. Returns `bytes` bytes of zeros, as a uint8 tensor to be viewed as any type, which
  // the group reduces, gathers and broadcasts where they lie. The memory lives as long as the
  // tensor or a view of it, even after the group. It is memory of the host; on gloo and in a group
  // of one it is ordinary memory. All ranks pass the same number; where memory is shared, anything
  // else is a DesyncError.
  //
  // If one rank cannot have its part, for example because its memory limit is reached, every rank
  // of its node gets an IoError with that rank and the reason. If all ranks share one node, the
  // group stays usable and nothing was allocated on any of them. If there are other nodes, their
  // ranks get a PeerLostError with the same text, and the group is unusable on all ranks.
  at::Tensor allocate(int64_t bytes);

  // Collective. Moves memory from another group's allocate() to this group, at the same address and
  // with the same contents; the other group can no longer reach it. `tensor` is the whole of what
  // allocate() returned; where memory is shared, anything else is a UsageError. Otherwise it fails
  // as allocate() does.
  void rebind(const at::Tensor& tensor);

  // The ranks, in order, that share memory with this one, which is among them: all of the group on
  // shm, those of the node on hierarchical, and this rank alone on gloo.
  std::vector<int> local_ranks() const;

  // Returns memory from allocate(), or a part of it, as each of local_ranks() has it. What a rank
  // wrote before a barrier() the others may read after it. A view keeps its memory alive. Throws
  // UsageError for other memory.
  std::vector<at::Tensor> local_views(const at::Tensor& memory) const;

  // Collective. Ranks with the same color become a group of their own, ordered by key and then by
  // rank. A rank with a negative color gets a group of one.
  Group split(int color, int key = 0) const;

  Traffic traffic() const;

  // Replaces the tensor on every rank by the reduction of all ranks' tensors.
  void all_reduce(const at::Tensor& tensor, ReduceOptions options = {});
  Work all_reduce_async(const at::Tensor& tensor, ReduceOptions options = {});

  // Replaces the tensor on every rank by the root's.
  void broadcast(const at::Tensor& tensor, BroadcastOptions options = {});
  Work broadcast_async(const at::Tensor& tensor, BroadcastOptions options = {});

  // Writes the inputs of rank 0, 1, ... one after another into `output`, which has size() times as
  // many elements as `input`.
  void all_gather(const at::Tensor& output, const at::Tensor& input, WaitOptions options = {});
  Work all_gather_async(const at::Tensor& output, const at::Tensor& input,
                        WaitOptions options = {});

  // Writes this rank's part of the reduction into `output`; `input` has size() times as many
  // elements.
  void reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                      ReduceOptions options = {});
  Work reduce_scatter_async(const at::Tensor& output, const at::Tensor& input,
                            ReduceOptions options = {});

  // Sends part r of `input` to rank r and writes what comes from rank r into part r of `output`.
  void all_to_all(const at::Tensor& output, const at::Tensor& input, AllToAllOptions options = {});
  Work all_to_all_async(const at::Tensor& output, const at::Tensor& input,
                        AllToAllOptions options = {});

  // Send or receive a message between two ranks, which name the same tag, type and number of
  // elements. These are not collective.
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
      kDefaultTimeout;  // for this call and for operations that name none
  BackendChoice backend = BackendChoice::Auto;
  WireType wire = WireType::Full;  // LOCKSTEP_WIRE=full|bfloat16|float16 overrides Full
};

// Returns a group of one, without a store.
Group make_single_group();

// Collective over the ranks named. Returns when all of them have called it and are connected. After
// an error the survivors agree on new ranks and a new name and call it again. Throws UsageError for
// a wrong option, or for a name whose earlier group has not ended on all its ranks, and
// TimeoutError or PeerLostError if a rank does not come.
Group make_group(const Store& store, GroupOptions options);

}  // namespace lockstep
