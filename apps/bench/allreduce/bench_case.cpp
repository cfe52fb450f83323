#include "bench/allreduce/bench_case.h"

#include <ATen/ops/empty.h>

#include <lockstep/base/error.h>

#include "bench/allreduce/bench_probe.h"

namespace lockstep {
namespace {

constexpr int64_t kAlignBytes = 64;

bool is_same_tensor(BenchOperation operation) {
  return operation == BenchOperation::AllReduce || operation == BenchOperation::Broadcast;
}

const char* name_of(BenchVariant variant) {
  switch (variant) {
    case BenchVariant::Lockstep:
      return "lockstep on allocated memory";
    case BenchVariant::Staged:
      return "lockstep on ordinary tensors";
    case BenchVariant::Gloo:
      return "gloo";
    case BenchVariant::MemoryPass:
      break;
  }
  return "the memory pass";
}

BenchSpan span_of(const at::Tensor& tensor) {
  return {.data = static_cast<std::byte*>(tensor.mutable_data_ptr()),
          .bytes = tensor.nbytes(),
          .type = tensor.scalar_type()};
}

}  // namespace

BenchCase::BenchCase(Group group, BenchPeer peer, BenchCaseOptions options)
    : group_(std::move(group)), peer_(std::move(peer)), options_(options) {
  const auto element = static_cast<int64_t>(c10::elementSize(options_.type));
  const int64_t part = options_.bytes / element / group_.size();
  switch (options_.operation) {
    case BenchOperation::AllReduce:
    case BenchOperation::Broadcast:
      input_count_ = output_count_ = options_.bytes / element;
      break;
    case BenchOperation::AllGather:
      input_count_ = part;
      output_count_ = part * group_.size();
      break;
    case BenchOperation::ReduceScatter:
      input_count_ = part * group_.size();
      output_count_ = part;
      break;
  }
  in_place_ = make_slots(true);
  ordinary_ = make_slots(false);
}

std::vector<BenchCase::Slot> BenchCase::make_slots(bool in_place) {
  const auto element = static_cast<int64_t>(c10::elementSize(options_.type));
  const auto make_memory = [&](int64_t count) {
    const int64_t stride = (count * element + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
    const int64_t bytes = stride * options_.num_slots;
    at::Tensor memory = in_place ? group_.allocate(bytes) : at::empty({bytes}, at::kByte);
    std::vector<at::Tensor> tensors;
    for (int64_t slot = 0; slot < options_.num_slots; ++slot) {
      const int64_t begin = slot * stride;
      tensors.push_back(memory.slice(0, begin, begin + count * element).view(options_.type));
    }
    return tensors;
  };
  const auto outputs = make_memory(output_count_);
  const auto inputs = is_same_tensor(options_.operation) ? outputs : make_memory(input_count_);
  std::vector<Slot> slots;
  for (size_t i = 0; i < outputs.size(); ++i) {
    slots.push_back({.input = inputs[i], .output = outputs[i], .tensors = {outputs[i]}});
  }
  return slots;
}

const BenchCase::Slot& BenchCase::slot_of(BenchVariant variant, int slot) const {
  const bool is_ordinary = variant == BenchVariant::Staged || variant == BenchVariant::Gloo;
  return (is_ordinary ? ordinary_ : in_place_).at(static_cast<size_t>(slot));
}

void BenchCase::write(BenchVariant variant, int slot, uint64_t salt) {
  write_pattern(span_of(slot_of(variant, slot).input), bench_values(group_.rank(), salt));
}

void BenchCase::run(BenchVariant variant, int slot) {
  switch (variant) {
    case BenchVariant::Lockstep:
    case BenchVariant::Staged:
      run_lockstep(slot_of(variant, slot));
      return;
    case BenchVariant::Gloo:
      run_peer(ordinary_.at(static_cast<size_t>(slot)));
      return;
    case BenchVariant::MemoryPass: {
      const Slot& place = slot_of(variant, slot);
      const at::Tensor& larger = input_count_ > output_count_ ? place.input : place.output;
      add_one_to_all(larger.mutable_data_ptr(), larger.nbytes());
      return;
    }
  }
}

void BenchCase::run_lockstep(const Slot& slot) {
  switch (options_.operation) {
    case BenchOperation::AllReduce:
      group_.all_reduce(slot.output);
      return;
    case BenchOperation::Broadcast:
      group_.broadcast(slot.output);
      return;
    case BenchOperation::AllGather:
      group_.all_gather(slot.output, slot.input);
      return;
    case BenchOperation::ReduceScatter:
      group_.reduce_scatter(slot.output, slot.input);
      return;
  }
}

void BenchCase::run_peer(Slot& slot) {
  switch (options_.operation) {
    case BenchOperation::AllReduce:
      peer_->allreduce(slot.tensors)->wait();
      return;
    case BenchOperation::Broadcast:
      peer_->broadcast(slot.tensors)->wait();
      return;
    case BenchOperation::AllGather:
      peer_->_allgather_base(slot.output, slot.input)->wait();
      return;
    case BenchOperation::ReduceScatter:
      peer_->_reduce_scatter_base(slot.output, slot.input)->wait();
      return;
  }
}

void BenchCase::check(BenchVariant variant, int slot, uint64_t salt, CheckExtent extent) const {
  if (variant == BenchVariant::MemoryPass) {
    return;
  }
  BenchSpan span = span_of(slot_of(variant, slot).output);
  std::string mistake;
  switch (options_.operation) {
    case BenchOperation::AllReduce:
      mistake = find_mistake(span, bench_sum(group_.size(), salt), extent);
      break;
    case BenchOperation::Broadcast:
      mistake = find_mistake(span, bench_values(0, salt), extent);
      break;
    case BenchOperation::ReduceScatter:
      span.first = static_cast<size_t>(group_.rank() * output_count_);
      mistake = find_mistake(span, bench_sum(group_.size(), salt), extent);
      break;
    case BenchOperation::AllGather:
      span.bytes /= static_cast<size_t>(group_.size());
      for (int rank = 0; rank < group_.size() && mistake.empty(); ++rank) {
        mistake = find_mistake(span, bench_values(rank, salt), extent);
        span.data += span.bytes;
      }
      break;
  }
  if (!mistake.empty()) {
    throw InternalError("a wrong result by {} at {} bytes on rank {}: {}", name_of(variant),
                        options_.bytes, group_.rank(), mistake);
  }
}

}  // namespace lockstep
