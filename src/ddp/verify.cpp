#include "ddp/verify.h"

#include <cstring>

#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

namespace lockstep::ddp {
namespace {

// Eight bytes at a time, in four lanes so that the multiplications overlap. Against mistakes, not
// against an attacker.
uint64_t hash_bytes(const std::byte* bytes, size_t size) {
  constexpr uint64_t kPrime = 0x9e3779b97f4a7c15u;
  constexpr size_t kLanes = 4;
  uint64_t lanes[kLanes] = {1, 2, 3, 4};
  size_t at = 0;
  for (; at + sizeof lanes <= size; at += sizeof lanes) {
    uint64_t words[kLanes];
    std::memcpy(words, bytes + at, sizeof words);
    for (size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = (lanes[lane] ^ words[lane]) * kPrime;
      lanes[lane] ^= lanes[lane] >> 29;
    }
  }
  uint64_t hash = size;
  for (; at < size; ++at) {
    hash = (hash ^ static_cast<uint64_t>(bytes[at])) * kPrime;
  }
  for (const uint64_t lane : lanes) {
    hash = (hash ^ lane) * kPrime;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace

void verify_equal(Group& group, const NamedTensors& tensors, int64_t step) {
  const auto count = static_cast<int64_t>(tensors.size());
  const at::Tensor mine = at::empty({count}, at::kLong);
  for (int64_t i = 0; i < count; ++i) {
    const at::Tensor dense = tensors[static_cast<size_t>(i)].second.detach().contiguous();
    mine.mutable_data_ptr<int64_t>()[i] = static_cast<int64_t>(
        hash_bytes(static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()));
  }
  const at::Tensor all = at::empty({group.size(), count}, at::kLong);
  group.all_gather(all, mine);
  const int64_t* hashes = all.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    std::vector<int> differing;
    for (int rank = 1; rank < group.size(); ++rank) {
      if (hashes[rank * count + i] != hashes[i]) {
        differing.push_back(rank);
      }
    }
    if (!differing.empty()) {
      throw DesyncError(
          "ddp: after step {} parameter '{}' of rank {} differs from rank 0's; did a rank change "
          "it "
          "by itself, or get other gradients?",
          step, tensors[static_cast<size_t>(i)].first, fmt::join(differing, ", "));
    }
  }
}

}  // namespace lockstep::ddp
