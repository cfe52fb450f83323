#include "formats/torch/pickle_nodes.h"

#include <unordered_set>

#include <lockstep/base/error.h>

#include "formats/tensor_info.h"

namespace lockstep::formats {

namespace {

using Kind = PickleValue::Kind;

// Equal for equal keys; empty for what cannot be a key.
std::string key_text(const PickleValue& key) {
  switch (key.kind) {
    case Kind::None:
      return "n";
    case Kind::Bool:
    case Kind::Int:
      return fmt::format("i{}", key.integer);
    case Kind::Float:
      return fmt::format("f{}", key.real);
    case Kind::String:
      return "s" + key.text;
    case Kind::Bytes:
      return "b" + key.text;
    case Kind::DType:
      return fmt::format("d{}", key.integer);
    case Kind::Tuple: {
      std::string text = "t";
      for (const PickleValue& item : key.items) {
        const std::string part = key_text(item);
        if (part.empty()) {
          return "";
        }
        text += fmt::format("{}:{}", part.size(), part);
      }
      return text;
    }
    default:
      return "";
  }
}

}  // namespace

const PickleValue* PickleValue::find(std::string_view key) const {
  for (size_t i = 0; kind == Kind::Dict && i + 1 < items.size(); i += 2) {
    if (items[i].kind == Kind::String && items[i].text == key) {
      return &items[i + 1];
    }
  }
  return nullptr;
}

NodeId PickleNodes::add(PickleNode node) {
  if (nodes_.size() >= limits_.num_values) {
    throw FormatError("more than {} values, the limit", limits_.num_values);
  }
  charge(node.text.size() + node.items.size() * sizeof(NodeId));
  nodes_.push_back(std::move(node));
  return static_cast<NodeId>(nodes_.size() - 1);
}

void PickleNodes::charge(size_t bytes) {
  memory_bytes_ += bytes;
  if (memory_bytes_ > limits_.memory_bytes) {
    throw FormatError("values of more than {} bytes, the limit", limits_.memory_bytes);
  }
}

PickleValue PickleNodes::expand(NodeId root) const {
  Spent spent;
  return expand(root, 0, spent);
}

PickleValue PickleNodes::expand(NodeId id, size_t depth, Spent& spent) const {
  const PickleNode& node = nodes_[id];
  if (depth > limits_.depth) {
    throw FormatError("values nested deeper than {}, the limit", limits_.depth);
  }
  spent.memory_bytes += node.text.size();
  if (++spent.num_values > limits_.num_values || spent.memory_bytes > limits_.memory_bytes) {
    throw FormatError("a tree of more than {} values or {} bytes, the limits", limits_.num_values,
                      limits_.memory_bytes);
  }
  if (node.role != PickleNode::Role::Value) {
    throw FormatError("a class or a storage where a value belongs");
  }
  PickleValue value{
      .kind = node.kind, .integer = node.integer, .real = node.real, .text = node.text};
  value.items.reserve(node.items.size());
  for (const NodeId item : node.items) {
    value.items.push_back(expand(item, depth + 1, spent));
  }
  if (node.kind == Kind::Dict) {
    check_keys(value);
  }
  return value;
}

void PickleNodes::check_keys(const PickleValue& dict) const {
  std::unordered_set<std::string> keys;
  for (size_t i = 0; i < dict.items.size(); i += 2) {
    std::string key = key_text(dict.items[i]);
    if (key.empty()) {
      throw FormatError("a dict with a key that no dict can have");
    }
    if (!keys.insert(std::move(key)).second) {
      throw FormatError("a dict with the key {} twice", base::shown(dict.items[i].text));
    }
  }
}

}  // namespace lockstep::formats
