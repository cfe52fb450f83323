#include "train/step/precision.h"

#include <sstream>

#include <ATen/autocast_mode.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep::train {
namespace {

constexpr double kFirstScale = 65536;
constexpr double kMaxScale = 16777216;
constexpr int64_t kStepsToDouble = 2000;

}  // namespace

Autocast::Autocast(Precision precision, at::DeviceType device)
    : is_on_(precision != Precision::Float32), device_(device) {
  if (!is_on_) {
    return;
  }
  was_enabled_ = at::autocast::is_autocast_enabled(device_);
  old_type_ = at::autocast::get_autocast_dtype(device_);
  at::autocast::set_autocast_enabled(device_, true);
  at::autocast::set_autocast_dtype(device_,
                                   precision == Precision::Float16 ? at::kHalf : at::kBFloat16);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (!is_on_) {
    return;
  }
  if (at::autocast::decrement_nesting() == 0) {
    at::autocast::clear_cache();  // 16-bit copies of the parameters, which change now
  }
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  at::autocast::set_autocast_dtype(device_, old_type_);
}

LossScale::LossScale(Precision precision) : is_dynamic_(precision == Precision::Float16) {
  value_ = is_dynamic_ ? kFirstScale : 1;
}

bool LossScale::update(bool is_finite) {
  if (!is_dynamic_) {
    return false;
  }
  if (!is_finite) {
    const bool can_be_lowered = value_ > 1;
    value_ = std::max(value_ / 2, 1.0);
    num_good_ = 0;
    return can_be_lowered;
  }
  if (++num_good_ == kStepsToDouble) {
    value_ = std::min(value_ * 2, kMaxScale);
    num_good_ = 0;
  }
  return false;
}

std::string LossScale::state() const {
  return fmt::format("{} {}", value_, num_good_);  // a power of two: exact
}

void LossScale::restore(const std::string& state) {
  std::istringstream stream(state);
  stream >> value_ >> num_good_;
  if (!stream || !(value_ >= 1)) {
    throw FormatError("the checkpoint's loss scale is \"{}\", not two numbers", state);
  }
}

}  // namespace lockstep::train
