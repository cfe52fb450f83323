#pragma once

// Computing in 16 bits: autocast while a forward runs, and the scale that keeps float16's gradients
// from vanishing.

#include <string>

#include <ATen/core/Tensor.h>

#include <lockstep/train/trainer.h>

namespace lockstep::train {

// While it lives, libtorch runs matrix products and convolutions of this thread in the precision
// given. Float32 changes nothing.
class Autocast {
 public:
  explicit Autocast(Precision precision, at::DeviceType device = at::kCPU);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool is_on_;
  at::DeviceType device_;
  bool was_enabled_ = false;
  at::ScalarType old_type_ = at::kBFloat16;
};

// Losses are multiplied by it before backward and gradients divided by it afterwards. It is halved
// when a gradient overflowed and doubled after many steps in which none did. It is 1 without
// Float16.
class LossScale {
 public:
  explicit LossScale(Precision precision);

  double value() const { return value_; }
  bool is_dynamic() const { return is_dynamic_; }
  // Call it after each step. True if the gradient overflowed and the scale was lowered: an ordinary
  // event, unlike an overflow that no lower scale can mend.
  bool update(bool is_finite);

  std::string state() const;
  void restore(const std::string& state);

 private:
  bool is_dynamic_;
  double value_ = 1;
  int64_t num_good_ = 0;
};

}  // namespace lockstep::train
