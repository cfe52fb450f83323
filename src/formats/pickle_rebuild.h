#pragma once

// What the entries of the table of globals do, and how storages and tensors are checked.

#include <span>
#include <unordered_map>

#include "formats/pickle_nodes.h"

namespace lockstep {

class PickleRebuild {
 public:
  PickleRebuild(PickleNodes& nodes, PersistentIds ids) : nodes_(nodes), ids_(ids) {}

  // BINPERSID: a storage. REDUCE: what `callee` makes of the tuple `arguments`. Throw FormatError.
  NodeId storage(NodeId id);
  NodeId call(NodeId callee, NodeId arguments);

  std::vector<PickledStorage> storages;
  std::vector<PickledTensor> tensors;

 private:
  NodeId tensor(Callee version, std::span<const NodeId> arguments);
  NodeId ordered_dict(std::span<const NodeId> arguments);
  NodeId device(std::span<const NodeId> arguments);
  NodeId encoded(std::span<const NodeId> arguments);
  std::vector<int64_t> integers(NodeId id) const;
  int64_t integer(NodeId id) const;
  const std::string& text(NodeId id) const;

  PickleNodes& nodes_;
  PersistentIds ids_;
  std::unordered_map<std::string, size_t> storage_of_key_;
};

}  // namespace lockstep
