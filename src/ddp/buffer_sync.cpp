#include "ddp/buffer_sync.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/variable.h>

#include "base/round.h"
#include "ddp/device/device_path.h"

namespace lockstep::ddp {
namespace {

// Packed parts begin at multiples of it on a device, where they are viewed as their own types.
constexpr int64_t kPartAlignBytes = 16;

int64_t packed_bytes(const at::Tensor& tensor) {
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  return takes_device_path(tensor.device()) ? base::rounded_up(bytes, kPartAlignBytes) : bytes;
}

int64_t packed_bytes(const NamedTensors& tensors) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    bytes += packed_bytes(tensor);
  }
  return bytes;
}

// Those on the CPU and those on a device; each may be empty.
std::array<NamedTensors, 2> by_device(const NamedTensors& tensors) {
  std::array<NamedTensors, 2> sorted;
  for (const auto& item : tensors) {
    sorted[item.second.is_cpu() ? 0 : 1].push_back(item);
  }
  return sorted;
}

// variable_data(): the same memory with a version counter of its own.
void pack(const NamedTensors& tensors, std::byte* to) {
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor dense = tensor.variable_data().contiguous();
    std::memcpy(to, dense.const_data_ptr(), dense.nbytes());
    to += dense.nbytes();
  }
}

void unpack(const std::byte* from, const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    at::Tensor target = tensor.variable_data();
    if (target.is_contiguous()) {
      std::memcpy(target.mutable_data_ptr(), from, target.nbytes());
    } else {
      const at::Tensor dense =
          at::empty(target.sizes(), target.options().memory_format(at::MemoryFormat::Contiguous));
      std::memcpy(dense.mutable_data_ptr(), from, dense.nbytes());
      target.copy_(dense);
    }
    from += target.nbytes();
  }
}

void broadcast_on_device(Group& group, const NamedTensors& tensors, int root,
                         const at::Tensor& packed) {
  std::vector<at::Tensor> own;
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (const auto& [name, tensor] : tensors) {
    own.push_back(tensor.variable_data());
    parts.push_back(packed.narrow(0, begin, static_cast<int64_t>(tensor.nbytes()))
                        .view(tensor.scalar_type())
                        .view(tensor.sizes()));
    begin += packed_bytes(tensor);
  }
  if (group.rank() == root) {
    copy_all(parts, own);
  }
  group.broadcast(packed, {.root = root});
  if (group.rank() != root) {
    copy_all(own, parts);
  }
}

void broadcast_packed(Group& group, const NamedTensors& tensors, int root,
                      const at::Tensor& packed) {
  if (takes_device_path(packed.device())) {
    broadcast_on_device(group, tensors, root, packed);
    return;
  }
  auto* const bytes = static_cast<std::byte*>(packed.mutable_data_ptr());
  if (group.rank() == root) {
    pack(tensors, bytes);
  }
  group.broadcast(packed, {.root = root});
  if (group.rank() != root) {
    unpack(bytes, tensors);
  }
}

}  // namespace

void broadcast_tensors(Group& group, const NamedTensors& tensors, int root, int64_t chunk_bytes) {
  for (const NamedTensors& there : by_device(tensors)) {
    for (size_t begin = 0; begin < there.size();) {
      NamedTensors chunk;
      int64_t bytes = 0;
      do {
        chunk.push_back(there[begin]);
        bytes += packed_bytes(there[begin++].second);
      } while (begin < there.size() && bytes + packed_bytes(there[begin].second) <= chunk_bytes);
      broadcast_packed(
          group, chunk, root,
          at::empty({bytes}, at::TensorOptions(there.front().second.device()).dtype(at::kByte)));
    }
  }
}

BufferSync::BufferSync(Group& group, const NamedTensors& buffers) {
  for (const NamedTensors& there : by_device(buffers)) {
    if (!there.empty()) {
      parts_.push_back({there, group_memory(group, std::max<int64_t>(1, packed_bytes(there)),
                                            there.front().second.device())});
    }
  }
}

void BufferSync::broadcast(Group& group, int root) {
  for (const Part& part : parts_) {
    broadcast_packed(group, part.buffers, root, part.packed);
  }
}

void BufferSync::rebind(Group& group) {
  for (const Part& part : parts_) {
    rebind_memory(group, part.packed);
  }
}

}  // namespace lockstep::ddp
