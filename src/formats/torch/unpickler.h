#pragma once

// Reads pickles of protocol 2, as torch.save writes them, and executes nothing: a "callable" is a
// word that is looked up in a fixed table, and each entry of it does one known thing to values that
// are checked first. Everything else is refused.

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "formats/torch/pickle_value.h"

namespace lockstep::formats {

struct PickleLimits {
  size_t num_values = 4'000'000;     // made by opcodes, and again in the tree that is returned
  size_t memory_bytes = 256u << 20;  // of text and references, and again in the tree
  size_t depth = 100;                // of the tree; a value that holds itself has no end
};

// Which persistent ids a container uses.
enum class PersistentIds {
  None,
  Zip,     // ('storage', class, key, location, number of elements)
  Legacy,  // the same and view_metadata: None, or (key, first element, number of elements)
  Tar,     // a number or decimal text: a tensor of a table that stands elsewhere
};

struct UnpickleOptions {
  std::string file;     // for messages
  uint64_t offset = 0;  // for messages: of the first byte in the file
  PersistentIds ids = PersistentIds::Zip;
  const std::unordered_map<std::string, size_t>* tensors = nullptr;  // of Tar: that table
  PickleLimits limits;
};

// In pickles of a tar a class of storages or tensors stands for its type of elements.
//
// The pickle at the front of `bytes`. Tensors lie inside their storages: offset, sizes and strides
// are checked against the number of elements that the storage is said to have. Throws FormatError
// with the offset of the opcode and, where it is known, the name of the tensor.
Pickle unpickle(std::string_view bytes, const UnpickleOptions& options);

}  // namespace lockstep::formats
