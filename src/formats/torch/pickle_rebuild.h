#pragma once

// What the entries of the table of globals do, and how storages and tensors are checked.

#include <span>
#include <unordered_map>

#include "formats/torch/pickle_nodes.h"

namespace lockstep::formats {

// Throws FormatError unless the tensor stays inside `storage_bytes` from the storage's start.
void check_tensor(const PickledTensor& tensor, uint64_t storage_bytes);

class PickleRebuild {
 public:
  PickleRebuild(PickleNodes& nodes, PersistentIds ids) : nodes_(nodes), ids_(ids) {}

  // BINPERSID: a storage. REDUCE: what `callee` makes of the tuple `arguments`. Throw FormatError.
  NodeId storage(NodeId id);
  NodeId call(NodeId callee, NodeId arguments);

  std::vector<PickledStorage> storages;
  std::vector<PickledTensor> tensors;

 private:
  // A storage, or the part of one that a name of its own stands for.
  struct View {
    size_t storage = 0;
    uint64_t offset_bytes = 0;
    uint64_t size_bytes = 0;
    bool operator==(const View&) const = default;
  };

  size_t add_storage(const std::string& key, uint64_t size_bytes, uint64_t element_bytes);
  View view_of(size_t storage, NodeId metadata);
  NodeId tensor(Callee version, std::span<const NodeId> arguments);
  NodeId ordered_dict(std::span<const NodeId> arguments);
  NodeId device(std::span<const NodeId> arguments);
  NodeId encoded(std::span<const NodeId> arguments);
  std::vector<int64_t> integers(NodeId id) const;
  int64_t integer(NodeId id) const;
  const std::string& text(NodeId id) const;

  PickleNodes& nodes_;
  PersistentIds ids_;
  std::vector<View> views_;  // one per persistent id
  std::unordered_map<std::string, size_t> storage_of_key_;
  std::unordered_map<std::string, View> view_of_key_;
};

}  // namespace lockstep::formats
