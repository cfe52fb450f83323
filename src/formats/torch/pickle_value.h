#pragma once

// What a pickle may hold here: a tree of plain values and descriptions of tensors. No objects, no
// classes, nothing that could be called.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/dtype.h"

namespace lockstep::formats {

struct PickleValue {
  enum class Kind : uint8_t {
    None,
    Bool,    // integer
    Int,     // integer
    BigInt,  // text: two's complement, little-endian, more than 8 bytes
    Float,   // real
    String,  // text
    Bytes,   // text
    Tuple,   // items
    List,    // items
    Set,     // items
    Dict,    // items: key, value, key, value, ... in their order
    Size,    // items: integers
    DType,   // integer: the enumerator
    Device,  // text: "cuda:0"
    Tensor,  // integer: which of the tensors that came with the tree
  };

  Kind kind = Kind::None;
  int64_t integer = 0;
  double real = 0;
  std::string text;
  std::vector<PickleValue> items;

  static PickleValue of(int64_t value) { return {.kind = Kind::Int, .integer = value}; }
  static PickleValue of(std::string value) {
    return {.kind = Kind::String, .text = std::move(value)};
  }
  static PickleValue of_tensor(size_t index) {
    return {.kind = Kind::Tensor, .integer = static_cast<int64_t>(index)};
  }

  // The value of a key that is text, in a dict; null where there is none.
  const PickleValue* find(std::string_view key) const;
};

// A storage as a pickle names it: its bytes are elsewhere.
struct PickledStorage {
  std::string key;
  uint64_t size_bytes = 0;
  uint64_t element_bytes = 1;  // of its class; 1 for an untyped one
};

// A tensor as a pickle describes it: a view of a storage, inside of it.
struct PickledTensor {
  size_t storage = 0;  // which of the storages
  DType dtype = DType::F32;
  uint64_t offset = 0;  // in elements
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // in elements
};

struct Pickle {
  PickleValue root;
  std::vector<PickledTensor> tensors;
  std::vector<PickledStorage> storages;  // each key once
  uint64_t size_bytes = 0;               // of the pickle itself, up to and with STOP
};

}  // namespace lockstep::formats
