#include "formats/torch/pickle_rebuild.h"

#include <fmt/ranges.h>

#include <lockstep/base/error.h>

#include "base/text/utf8.h"
#include "formats/tensor_info.h"

namespace lockstep::formats {

namespace {

using Kind = PickleValue::Kind;
using Role = PickleNode::Role;

uint64_t bytes_of(DType dtype) {
  return static_cast<uint64_t>(bits_of(dtype)) / 8;
}

// One past the last element that the tensor can touch, counted from the start of its storage.
std::optional<uint64_t> end_of(const PickledTensor& tensor) {
  std::optional<uint64_t> end = tensor.offset;
  if (checked_elements(tensor.shape) == 0u) {
    return end;
  }
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    const auto reach = checked_multiply(static_cast<uint64_t>(tensor.shape[i] - 1),
                                        static_cast<uint64_t>(tensor.strides[i]));
    end = end && reach ? checked_add(*end, *reach) : std::nullopt;
  }
  return end ? checked_add(*end, 1) : end;
}

}  // namespace

void check_tensor(const PickledTensor& tensor, uint64_t storage_bytes) {
  const auto fail = [&](const char* what) {
    throw FormatError("{} at element {} with strides [{}] {}",
                      to_string(tensor.dtype, tensor.shape), tensor.offset,
                      fmt::join(tensor.strides, ", "), what);
  };
  if (tensor.shape.size() != tensor.strides.size() || tensor.shape.size() > kMaxDims) {
    fail("has not one stride per dimension, or more than 64 dimensions");
  }
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    if (tensor.shape[i] < 0 || tensor.strides[i] < 0) {
      fail("has a negative size or stride");
    }
  }
  const auto end = end_of(tensor);
  if (!checked_bytes(tensor.dtype, tensor.shape) || !end ||
      *end > storage_bytes / bytes_of(tensor.dtype)) {
    fail(fmt::format("reaches out of its storage of {} bytes", storage_bytes).c_str());
  }
}

int64_t PickleRebuild::integer(NodeId id) const {
  if (!nodes_[id].is(Kind::Int)) {
    throw FormatError("something else where a whole number of 64 bits belongs");
  }
  return nodes_[id].integer;
}

const std::string& PickleRebuild::text(NodeId id) const {
  if (!nodes_[id].is(Kind::String)) {
    throw FormatError("something else where text belongs");
  }
  return nodes_[id].text;
}

std::vector<int64_t> PickleRebuild::integers(NodeId id) const {
  if (!nodes_[id].is(Kind::Tuple) && !nodes_[id].is(Kind::Size)) {
    throw FormatError("something else where a tuple of numbers belongs");
  }
  std::vector<int64_t> numbers;
  for (const NodeId item : nodes_[id].items) {
    numbers.push_back(integer(item));
  }
  return numbers;
}

NodeId PickleRebuild::storage(NodeId id) {
  const PickleNode& node = nodes_[id];
  const size_t num_fields = ids_ == PersistentIds::Zip ? 5 : 6;
  if (ids_ == PersistentIds::None || !node.is(Kind::Tuple) || node.items.size() != num_fields ||
      text(node.items[0]) != "storage") {
    throw FormatError("a persistent id that is not a storage of this container");
  }
  const PickleNode& type = nodes_[node.items[1]];
  const bool is_typed = type.role == Role::Global && type.global.callee == Callee::TypedStorage;
  if (!is_typed && !(type.role == Role::Global && type.global.callee == Callee::UntypedStorage)) {
    throw FormatError("a storage whose class is none");
  }
  const std::string& key = text(node.items[2]);
  const int64_t count = integer(node.items[4]);
  const uint64_t element_bytes = is_typed ? bytes_of(*type.global.dtype) : 1;
  const auto size = checked_multiply(static_cast<uint64_t>(count), element_bytes);
  if (count < 0 || !size || *size > INT64_MAX) {
    throw FormatError("storage {} of {} elements", base::shown(key), count);
  }
  const size_t storage = add_storage(key, *size, element_bytes);
  const bool is_whole = ids_ != PersistentIds::Legacy || nodes_[node.items[5]].is(Kind::None);
  views_.push_back(is_whole ? View{.storage = storage, .size_bytes = *size}
                            : view_of(storage, node.items[5]));
  return nodes_.add({.role = Role::Storage,
                     .global = type.global,
                     .integer = static_cast<int64_t>(views_.size() - 1)});
}

size_t PickleRebuild::add_storage(const std::string& key, uint64_t size_bytes,
                                  uint64_t element_bytes) {
  const auto [place, is_new] = storage_of_key_.emplace(key, storages.size());
  if (is_new) {
    storages.push_back({.key = key, .size_bytes = size_bytes, .element_bytes = element_bytes});
  } else if (storages[place->second].size_bytes != size_bytes) {
    throw FormatError("storage {} of {} bytes, which had {} before", base::shown(key), size_bytes,
                      storages[place->second].size_bytes);
  }
  if (view_of_key_.contains(key)) {
    throw FormatError("storage {}, which was a view of another before", base::shown(key));
  }
  return place->second;
}

// (key, first element, number of elements): of old files, in which a storage could lie in another.
PickleRebuild::View PickleRebuild::view_of(size_t storage, NodeId metadata) {
  const PickleNode& node = nodes_[metadata];
  if (!node.is(Kind::Tuple) || node.items.size() != 3) {
    throw FormatError("a view of a storage from something else than key, offset and size");
  }
  const std::string& key = text(node.items[0]);
  const int64_t offset = integer(node.items[1]);
  const int64_t count = integer(node.items[2]);
  const uint64_t num_elements = storages[storage].size_bytes / storages[storage].element_bytes;
  if (offset < 0 || count < 0 || static_cast<uint64_t>(offset) > num_elements ||
      static_cast<uint64_t>(count) > num_elements - static_cast<uint64_t>(offset)) {
    throw FormatError("a view of {} elements from {} on, which reaches out of storage {} of {}",
                      count, offset, base::shown(storages[storage].key), num_elements);
  }
  const uint64_t element_bytes = storages[storage].element_bytes;
  const View view{.storage = storage,
                  .offset_bytes = static_cast<uint64_t>(offset) * element_bytes,
                  .size_bytes = static_cast<uint64_t>(count) * element_bytes};
  if (storage_of_key_.contains(key) || view_of_key_.emplace(key, view).first->second != view) {
    throw FormatError("the view {}, which was another storage before", base::shown(key));
  }
  return view;
}

NodeId PickleRebuild::tensor(Callee version, std::span<const NodeId> arguments) {
  const size_t least = version == Callee::RebuildTensor     ? 4
                       : version == Callee::RebuildTensorV2 ? 6
                                                            : 7;
  const size_t most = version == Callee::RebuildTensor ? least : least + 1;
  if (arguments.size() < least || arguments.size() > most ||
      nodes_[arguments[0]].role != Role::Storage) {
    throw FormatError("a tensor from {} arguments, or not from a storage", arguments.size());
  }
  const PickleNode& storage_node = nodes_[arguments[0]];
  std::optional<DType> dtype = storage_node.global.dtype;
  if (version == Callee::RebuildTensorV3) {
    const PickleNode& node = nodes_[arguments[6]];
    dtype = node.is(Kind::DType) ? std::optional(static_cast<DType>(node.integer)) : std::nullopt;
  }
  if (!dtype) {
    throw FormatError("a tensor without a type");
  }
  if (arguments.size() == least + 1 && version != Callee::RebuildTensor) {
    const PickleNode& metadata = nodes_[arguments[least]];
    if (!metadata.is(Kind::None) && !(metadata.is(Kind::Dict) && metadata.items.empty())) {
      throw FormatError(
          "a tensor that is conjugated, negated or has other metadata; save it after "
          "resolve_conj() and resolve_neg()");
    }
  }
  const int64_t offset = integer(arguments[1]);
  if (offset < 0) {
    throw FormatError("a tensor at element {} of its storage", offset);
  }
  const View& view = views_[static_cast<size_t>(storage_node.integer)];
  PickledTensor tensor{.storage = view.storage,
                       .dtype = *dtype,
                       .offset = static_cast<uint64_t>(offset),
                       .shape = integers(arguments[2]),
                       .strides = integers(arguments[3])};
  check_tensor(tensor, view.size_bytes);
  if (view.offset_bytes % bytes_of(*dtype) != 0) {
    throw FormatError("a tensor in a view that begins inside an element");
  }
  tensor.offset += view.offset_bytes / bytes_of(*dtype);
  nodes_.charge(2 * tensor.shape.size() * sizeof(int64_t));
  tensors.push_back(std::move(tensor));
  return nodes_.add({.kind = Kind::Tensor, .integer = static_cast<int64_t>(tensors.size() - 1)});
}

NodeId PickleRebuild::ordered_dict(std::span<const NodeId> arguments) {
  PickleNode dict{.kind = Kind::Dict, .is_ordered = true};
  if (arguments.size() == 1 && nodes_[arguments[0]].is(Kind::Dict)) {
    dict.items = nodes_[arguments[0]].items;
  } else if (arguments.size() == 1 && nodes_[arguments[0]].is(Kind::List)) {
    for (const NodeId pair : nodes_[arguments[0]].items) {
      const PickleNode& node = nodes_[pair];
      if ((!node.is(Kind::List) && !node.is(Kind::Tuple)) || node.items.size() != 2) {
        throw FormatError("an OrderedDict from something else than pairs");
      }
      dict.items.insert(dict.items.end(), node.items.begin(), node.items.end());
    }
  } else if (!arguments.empty()) {
    throw FormatError("an OrderedDict from something else than pairs");
  }
  return nodes_.add(std::move(dict));
}

NodeId PickleRebuild::device(std::span<const NodeId> arguments) {
  if (arguments.empty() || arguments.size() > 2) {
    throw FormatError("a device from {} arguments", arguments.size());
  }
  std::string name = text(arguments[0]);
  if (arguments.size() == 2) {
    name += fmt::format(":{}", integer(arguments[1]));
  }
  return nodes_.add({.kind = Kind::Device, .text = std::move(name)});
}

// Protocol 2 has no bytes: they are text of the first 256 characters, in UTF-8 here.
NodeId PickleRebuild::encoded(std::span<const NodeId> arguments) {
  if (arguments.size() != 2 || text(arguments[1]) != "latin1") {
    throw FormatError("bytes in another encoding than latin1");
  }
  const std::string& letters = text(arguments[0]);
  std::string bytes;
  for (std::string_view left = letters; !left.empty();) {
    const base::Utf8Letter letter = base::utf8_letter(left);
    if (letter.bytes == 0 || letter.point > 0xff) {
      throw FormatError("bytes with a character beyond 255");
    }
    bytes += static_cast<char>(letter.point);
    left.remove_prefix(letter.bytes);
  }
  return nodes_.add({.kind = Kind::Bytes, .text = std::move(bytes)});
}

NodeId PickleRebuild::call(NodeId callee, NodeId arguments) {
  const PickleNode& function = nodes_[callee];
  if (function.role != Role::Global || !nodes_[arguments].is(Kind::Tuple)) {
    throw FormatError("a call of something that is no function, or without a tuple");
  }
  const std::span<const NodeId> values = nodes_[arguments].items;
  const auto only_if = [&](bool holds) {
    if (!holds) {
      throw FormatError("a constructor with arguments that it does not take");
    }
  };
  switch (function.global.callee) {
    case Callee::OrderedDict:
    case Callee::Counter:
      return ordered_dict(values);
    case Callee::Set:
      only_if(values.empty() || (values.size() == 1 && nodes_[values[0]].is(Kind::List)));
      return nodes_.add(
          {.kind = Kind::Set,
           .items = values.empty() ? std::vector<NodeId>() : nodes_[values[0]].items});
    case Callee::Encode:
      return encoded(values);
    case Callee::Size:
      only_if(values.size() == 1);
      integers(values[0]);
      return nodes_.add({.kind = Kind::Size, .items = nodes_[values[0]].items});
    case Callee::Device:
      return device(values);
    case Callee::RebuildTensor:
    case Callee::RebuildTensorV2:
    case Callee::RebuildTensorV3:
      return tensor(function.global.callee, values);
    case Callee::Parameter:
      only_if(!values.empty() && values.size() <= 4 && nodes_[values[0]].is(Kind::Tensor));
      return values[0];
    case Callee::TypedStorage:
    case Callee::UntypedStorage:
    case Callee::DType:
      break;
  }
  throw FormatError("a call of a class that is only named, never called");
}

}  // namespace lockstep::formats
