#pragma once

#include <span>
#include <string>

#include "formats/torch/pickle_value.h"

namespace lockstep::formats {

// A pickle of protocol 2 that torch.load(weights_only=True) reads: `root` with the tensors that it
// refers to, whose storages are named by persistent ids as in a zip. Throws UsageError for a value
// that cannot be written, such as a tensor of a packed type.
std::string pickle(const PickleValue& root, std::span<const PickledTensor> tensors,
                   std::span<const PickledStorage> storages);

}  // namespace lockstep::formats
