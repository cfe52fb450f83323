#include "ddp/buffer_sync.h"

#include <cstring>

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/variable.h>

namespace lockstep::ddp {
namespace {

int64_t total_bytes(const NamedTensors& tensors) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
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

void broadcast_packed(Group& group, const NamedTensors& tensors, int root,
                      const at::Tensor& packed) {
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
  for (size_t begin = 0; begin < tensors.size();) {
    NamedTensors chunk;
    int64_t bytes = 0;
    do {
      chunk.push_back(tensors[begin]);
      bytes += static_cast<int64_t>(tensors[begin++].second.nbytes());
    } while (begin < tensors.size() &&
             bytes + static_cast<int64_t>(tensors[begin].second.nbytes()) <= chunk_bytes);
    broadcast_packed(group, chunk, root, at::empty({bytes}, at::kByte));
  }
}

BufferSync::BufferSync(Group& group, NamedTensors buffers) : buffers_(std::move(buffers)) {
  if (!buffers_.empty()) {
    packed_ = group.allocate(std::max<int64_t>(1, total_bytes(buffers_)));
  }
}

void BufferSync::broadcast(Group& group, int root) {
  if (!buffers_.empty()) {
    broadcast_packed(group, buffers_, root, packed_);
  }
}

void BufferSync::rebind(Group& group) {
  if (!buffers_.empty()) {
    group.rebind(packed_);
  }
}

}  // namespace lockstep::ddp
