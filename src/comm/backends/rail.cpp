#include "comm/backends/rail.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <lockstep/base/error.h>

#include "comm/backends/local_team.h"
#include "shm/kernels.h"

namespace lockstep::comm {
namespace {

// Every operation begins with a frame of this one size, so that nodes whose calls differ find out
// before they exchange tensors that do not fit. Small data rides along.
constexpr size_t kInlineBytes = 4096;
struct Frame {
  shm::CallId call;
  uint64_t bytes;
  std::byte data[kInlineBytes];
};

constexpr size_t kAlignBytes = 64;
constexpr size_t kBlockBytes = 512 << 10;  // to one node at a time

at::Tensor bytes_of(void* data, size_t bytes) {
  return at::from_blob(data, {static_cast<int64_t>(bytes)}, at::kByte);
}

// Shares its memory, and keeps it alive: an operation that was given up may still write there.
at::Tensor part_of(const at::Tensor& tensor, size_t offset, size_t bytes) {
  return tensor.narrow(0, static_cast<int64_t>(offset), static_cast<int64_t>(bytes));
}

void resize(at::Tensor& tensor, size_t bytes) {
  if (!tensor.defined() || tensor.nbytes() < bytes) {
    tensor = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
  }
}

std::byte* data_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

void convert(void* to, shm::DataType to_type, const void* from, shm::DataType from_type,
             size_t count) {
  if (to_type == from_type) {
    std::memcpy(to, from, count * shm::element_bytes(to_type));
    return;
  }
  shm::find_kernel({.from = from_type, .to = to_type})({.sources = &from,
                                                        .num_sources = 1,
                                                        .destinations = &to,
                                                        .num_destinations = 1,
                                                        .count = count});
}

// The exponent of the power of two that brings the largest finite number into [2^14, 2^15).
int32_t scale_of(const float* values, size_t count) {
  constexpr uint32_t kMagnitude = 0x7fffffff;
  constexpr uint32_t kInfinity = 0x7f800000;
  uint32_t largest = 0;  // magnitudes are ordered as their bits are
  for (size_t i = 0; i < count; ++i) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(values[i]) & kMagnitude;
    largest = std::max(largest, magnitude < kInfinity ? magnitude : 0);
  }
  if (largest == 0) {
    return 0;
  }
  int exponent = 0;
  std::frexp(std::bit_cast<float>(largest), &exponent);
  constexpr int kMost = 126;  // so that the power and its inverse are normal numbers
  return std::clamp(15 - exponent, -kMost, kMost);
}

void multiply(float* to, const float* from, float factor, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    to[i] = from[i] * factor;
  }
}

// Children of a node in the binomial tree by which Gloo broadcasts.
int num_children(int node, int root, int num_nodes) {
  const int place = (node - root + num_nodes) % num_nodes;
  int children = 0;
  for (int bit = 1; bit < num_nodes; bit *= 2) {
    if (place < bit && place + bit < num_nodes) {
      ++children;
    }
  }
  return children;
}

}  // namespace

Rail::Rail(RailOptions options) : options_(std::move(options)) {}

// A step of the user's call, named and limited as that is.
std::shared_ptr<WorkState> Rail::start(const Call& call, Call step) {
  step.part_of = call.label();
  step.sequence = call.sequence;
  step.deadline = call.deadline;
  step.timeout = call.timeout;
  return options_.gloo->start(std::move(step));
}

void Rail::run(const Call& call, Call step) {
  if (const auto work = start(call, std::move(step))) {
    work->wait(base::Deadline::never());
  }
}

at::Tensor Rail::exchange_frames(const Call& call, const void* data, size_t bytes) {
  Frame mine{.call = to_shm(call.label()), .bytes = bytes, .data = {}};
  if (data != nullptr) {
    std::memcpy(mine.data, data, bytes);
  }
  at::Tensor all = at::empty({num_nodes() * static_cast<int64_t>(sizeof(Frame))}, at::kByte);
  run(call,
      {.operation = Operation::AllGather, .input = bytes_of(&mine, sizeof mine), .output = all});
  const auto* frames = reinterpret_cast<const Frame*>(all.const_data_ptr());
  for (int node = 0; node < num_nodes(); ++node) {
    if (frames[node].call.agrees_with(mine.call) && frames[node].bytes == mine.bytes) {
      continue;
    }
    const auto first = static_cast<size_t>(frames[0].call.agrees_with(mine.call) ? node : 0);
    const shm::CallId& theirs = frames[first].call;
    options_.membership->fail_call(
        call, {Failure::Kind::Desync, disagreement_text({.rank = options_.ranks[first],
                                                         .signature = label_of(theirs).signature(),
                                                         .sequence = theirs.sequence},
                                                        {.rank = options_.membership->rank(),
                                                         .signature = call.signature(),
                                                         .sequence = mine.call.sequence})});
  }
  return all;
}

void Rail::all_reduce(const Call& call, const Slice& slice) {
  const size_t count = slice.node.count;
  if (count * shm::element_bytes(slice.type) <= kInlineBytes) {
    reduce_inline(call, slice);
    return;
  }
  exchange_frames(call, nullptr, 0);
  // Block by block, all under way at once: while one is summed the next ones travel.
  const Wire wire = wire_of(options_.wire, slice);
  const size_t block_count = std::max<size_t>(kBlockBytes / shm::element_bytes(wire.type), 1) *
                             static_cast<size_t>(num_nodes());
  std::vector<Block> blocks;
  size_t wire_bytes = 0;
  for (size_t begin = 0; begin < count; begin += block_count) {
    Block block{.begin = begin,
                .count = std::min(block_count, count - begin),
                .part = 0,
                .offset = wire_bytes,
                .work = nullptr};
    const size_t unit = kAlignBytes / shm::element_bytes(wire.type);
    const auto nodes = static_cast<size_t>(num_nodes());
    block.part = ((block.count + nodes - 1) / nodes + unit - 1) / unit * unit;
    wire_bytes += nodes * wire.part_bytes(block);
    blocks.push_back(block);
  }
  resize(send_, wire_bytes);
  resize(receive_, wire_bytes);
  for (Block& block : blocks) {
    slice.node.reduce(block.begin, block.count);
    scatter(call, slice, wire, block);
  }
  for (Block& block : blocks) {
    block.work->wait(base::Deadline::never());
    sum_and_gather(call, slice, wire, block);
  }
  for (Block& block : blocks) {
    block.work->wait(base::Deadline::never());
    collect(slice, wire, block);
    slice.node.write(block.begin, block.count);
  }
}

// So little data came with the frames: every node computes the sum for itself.
void Rail::reduce_inline(const Call& call, const Slice& slice) {
  const size_t count = slice.node.count;
  const size_t bytes = count * shm::element_bytes(slice.type);
  slice.node.reduce(0, count);
  const at::Tensor frames = exchange_frames(call, slice.node.partial, bytes);
  std::vector<const void*> sources;
  for (int node = 0; node < num_nodes(); ++node) {
    sources.push_back(reinterpret_cast<const Frame*>(data_of(frames))[node].data);
  }
  void* result = slice.node.partial;
  slice.kernel()({.sources = sources.data(),
                  .num_sources = num_nodes(),
                  .destinations = &result,
                  .num_destinations = 1,
                  .count = count});
  slice.node.write(0, count);
  bytes_sent_ += static_cast<uint64_t>(num_nodes() - 1) * bytes;
}

shm::ReduceKernel Rail::Slice::kernel() const {
  return shm::find_kernel({.from = type, .to = type, .reduction = reduction});
}

// Elements of part `node` of the block: the last parts may be cut short, or empty.
size_t Rail::Block::part_count(size_t node) const {
  return std::min(part, count - std::min(node * part, count));
}

std::byte* Rail::place(const Slice& slice, const Block& block, size_t node) {
  return slice.node.partial + (block.begin + node * block.part) * shm::element_bytes(slice.type);
}

size_t Rail::Wire::part_bytes(const Block& block) const {
  return block.part * shm::element_bytes(type) + (has_scale ? kAlignBytes : 0);
}

Rail::Wire Rail::wire_of(WireType wanted, const Slice& slice) {
  const bool is_sum = slice.reduction == shm::Reduction::Sum;
  if (wanted == WireType::Full || slice.type != shm::DataType::Float32 || !is_sum) {
    return {.type = slice.type};
  }
  return wanted == WireType::BFloat16 ? Wire{.type = shm::DataType::BFloat16}
                                      : Wire{.type = shm::DataType::Float16, .has_scale = true};
}

// float16 ends at 65504, which a sum passes though its average would not: a part is sent with the
// power of two that brings its largest number near that end. Such a scale changes no digits.
void Rail::pack(std::byte* to, const Wire& wire, const std::byte* from, const Slice& slice,
                size_t count) {
  if (!wire.has_scale) {
    convert(to, wire.type, from, slice.type, count);
    return;
  }
  const auto* const values = reinterpret_cast<const float*>(from);
  const int32_t exponent = scale_of(values, count);
  std::memcpy(to, &exponent, sizeof exponent);
  resize(scaled_, count * sizeof(float));
  multiply(reinterpret_cast<float*>(data_of(scaled_)), values, std::ldexp(1.0f, exponent), count);
  convert(to + kAlignBytes, wire.type, data_of(scaled_), slice.type, count);
}

void Rail::unpack(std::byte* to, const Slice& slice, const std::byte* from, const Wire& wire,
                  size_t count) {
  convert(to, slice.type, from + (wire.has_scale ? kAlignBytes : 0), wire.type, count);
  if (wire.has_scale) {
    int32_t exponent = 0;
    std::memcpy(&exponent, from, sizeof exponent);
    auto* const values = reinterpret_cast<float*>(to);
    multiply(values, values, std::ldexp(1.0f, -exponent), count);
  }
}

// Part h of the block goes to node h, in parts of one size.
void Rail::scatter(const Call& call, const Slice& slice, const Wire& wire, Block& block) {
  const auto nodes = static_cast<size_t>(num_nodes());
  const size_t part_bytes = wire.part_bytes(block);
  for (size_t node = 0; node < nodes; ++node) {
    pack(data_of(send_) + block.offset + node * part_bytes, wire, place(slice, block, node), slice,
         block.part_count(node));
  }
  const std::vector<int64_t> splits(nodes, static_cast<int64_t>(part_bytes));
  block.work = start(call, {.operation = Operation::AllToAll,
                            .input = part_of(send_, block.offset, nodes * part_bytes),
                            .output = part_of(receive_, block.offset, nodes * part_bytes),
                            .input_splits = splits,
                            .output_splits = splits,
                            .owns_tensors = true});
  bytes_sent_ += (nodes - 1) * part_bytes;
}

// This node's part has come from all: sums it, its own values as they are and the others' as they
// came, and sends the sum to all.
void Rail::sum_and_gather(const Call& call, const Slice& slice, const Wire& wire, Block& block) {
  const auto nodes = static_cast<size_t>(num_nodes());
  const auto self = static_cast<size_t>(options_.gloo->rank());
  const size_t part_bytes = wire.part_bytes(block);
  const size_t wide_bytes = block.part * shm::element_bytes(slice.type);
  if (wire.type != slice.type) {
    resize(wide_, nodes * wide_bytes);
  }
  std::vector<const void*> sources;
  for (size_t node = 0; node < nodes; ++node) {
    const std::byte* arrived = data_of(receive_) + block.offset + node * part_bytes;
    if (node == self) {
      arrived = place(slice, block, self);
    } else if (wire.type != slice.type) {
      std::byte* const wide = data_of(wide_) + node * wide_bytes;
      unpack(wide, slice, arrived, wire, block.part_count(self));
      arrived = wide;
    }
    sources.push_back(arrived);
  }
  void* result = place(slice, block, self);
  slice.kernel()({.sources = sources.data(),
                  .num_sources = num_nodes(),
                  .destinations = &result,
                  .num_destinations = 1,
                  .count = block.part_count(self)});
  pack(data_of(send_) + block.offset, wire, static_cast<const std::byte*>(result), slice,
       block.part_count(self));
  block.work = start(call, {.operation = Operation::AllGather,
                            .input = part_of(send_, block.offset, part_bytes),
                            .output = part_of(receive_, block.offset, nodes * part_bytes),
                            .owns_tensors = true});
  bytes_sent_ += (nodes - 1) * part_bytes;
}

// The sums of all nodes are here; as they came, so that every rank has the same bits.
void Rail::collect(const Slice& slice, const Wire& wire, const Block& block) {
  const size_t part_bytes = wire.part_bytes(block);
  for (size_t node = 0; node < static_cast<size_t>(num_nodes()); ++node) {
    unpack(place(slice, block, node), slice, data_of(receive_) + block.offset + node * part_bytes,
           wire, block.part_count(node));
  }
}

void Rail::broadcast(const Call& call, const at::Tensor& slice, int root) {
  compare(call);
  if (slice.nbytes() == 0) {
    return;
  }
  run(call, {.operation = Operation::Broadcast, .input = slice, .output = slice, .peer = root});
  bytes_sent_ += static_cast<uint64_t>(num_children(options_.gloo->rank(), root, num_nodes())) *
                 slice.nbytes();
}

}  // namespace lockstep::comm
