#pragma once

#include <c10/core/ScalarType.h>

#include "formats/dtype.h"

namespace lockstep::weights {

// libtorch's name for the type; Undefined for those it lacks (F4, F6).
at::ScalarType scalar_type_of(formats::DType dtype);

}  // namespace lockstep::weights
