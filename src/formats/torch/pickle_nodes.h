#pragma once

// The values of a pickle while it is read: they refer to each other by number, since a pickle may
// use a value twice or put a list into itself. expand() makes a tree of them.

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "formats/torch/pickle_globals.h"
#include "formats/torch/pickle_value.h"
#include "formats/torch/unpickler.h"

namespace lockstep::formats {

using NodeId = uint32_t;

struct PickleNode {
  enum class Role : uint8_t { Value, Global, Storage };

  Role role = Role::Value;
  PickleValue::Kind kind = PickleValue::Kind::None;  // of a value
  bool is_ordered = false;  // an OrderedDict: the one thing that BUILD may touch
  Global global{};          // of a global; of a storage: its class
  int64_t integer = 0;      // as in PickleValue; of a storage: which one
  double real = 0;
  std::string text;
  std::vector<NodeId> items;

  bool is(PickleValue::Kind wanted) const { return role == Role::Value && kind == wanted; }
};

class PickleNodes {
 public:
  explicit PickleNodes(const PickleLimits& limits) : limits_(limits) {}

  // References stay valid when others are added. Throws FormatError at the limits.
  NodeId add(PickleNode node);
  void charge(size_t bytes);  // for memory that belongs to a node and is kept elsewhere
  PickleNode& operator[](NodeId id) { return nodes_[id]; }
  const PickleNode& operator[](NodeId id) const { return nodes_[id]; }

  // Throws FormatError for what is no plain value, for a key that no dict can have or that is there
  // twice, and beyond the limits: a value that holds itself, or a small one that unfolds into
  // billions.
  PickleValue expand(NodeId root) const;

 private:
  struct Spent {
    size_t num_values = 0;
    size_t memory_bytes = 0;
  };

  PickleValue expand(NodeId id, size_t depth, Spent& spent) const;
  void check_keys(const PickleValue& dict) const;

  const PickleLimits& limits_;
  std::deque<PickleNode> nodes_;
  size_t memory_bytes_ = 0;
};

}  // namespace lockstep::formats
