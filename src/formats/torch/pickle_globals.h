#pragma once

// The fixed table of what a pickle may name by GLOBAL.

#include <cstdint>
#include <optional>
#include <string_view>

#include "formats/dtype.h"

namespace lockstep::formats {

enum class Callee : uint8_t {
  OrderedDict,
  Counter,
  Set,
  Encode,  // how protocol 2 spells bytes
  Size,
  Device,
  RebuildTensor,    // (storage, offset, size, stride)
  RebuildTensorV2,  // ... requires_grad, hooks[, metadata]
  RebuildTensorV3,  // ... requires_grad, hooks, dtype[, metadata]
  Parameter,        // (tensor, requires_grad[, hooks[, state]])
  TypedStorage,     // only in persistent ids
  UntypedStorage,   // only in persistent ids
  DType,            // a value, never called
};

struct Global {
  Callee callee;
  std::optional<DType> dtype;  // of TypedStorage and DType
};

// Nothing: not in the table, which is an error whatever the name.
std::optional<Global> find_global(std::string_view module, std::string_view name);

// The same, but classes of storages and tensors, also those of torch.cuda, are types of elements.
std::optional<Global> find_tar_global(std::string_view module, std::string_view name);

}  // namespace lockstep::formats
