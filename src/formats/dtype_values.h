#pragma once

// Elements as numbers, to compare tensors of different types.

#include <cstddef>
#include <span>
#include <vector>

#include "formats/dtype.h"

namespace lockstep::formats {

// Floats and complex numbers (two of them) of whole bytes; not integers, bools and packed types.
bool is_float(DType dtype);

// Every value of the bytes, exactly; `dtype` is a float.
void append_values(DType dtype, std::span<const std::byte> bytes, std::vector<double>& values);

}  // namespace lockstep::formats
