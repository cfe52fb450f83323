#pragma once

// power_sgd() with a choice of the first Q, for tests that compare with other implementations.

#include <functional>
#include <memory>

#include <lockstep/ddp/power_sgd.h>

#include "ddp/low_rank.h"

namespace lockstep::ddp {

// Like fill_empty_rows.
using FillRows = std::function<void(const at::Tensor& rows, const RowSeed& seed)>;

std::shared_ptr<CommHook> make_power_sgd(PowerSgdOptions options, FillRows fill_rows);

}  // namespace lockstep::ddp
