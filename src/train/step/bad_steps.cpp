#include "train/step/bad_steps.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/parse_real.h"

namespace lockstep::train {
namespace {

constexpr int64_t kStepsToLearn = 20;  // before them it is not known what is usual
constexpr double kSlowness = 50;       // steps over which the average forgets

}  // namespace

double BadSteps::limit() const {
  return options_.spike_factor > 0 && num_good_ >= kStepsToLearn
             ? options_.spike_factor * usual_norm_
             : std::numeric_limits<double>::infinity();
}

bool BadSteps::accept(int64_t step, double grad_norm) {
  const bool is_spike = std::isfinite(limit()) && grad_norm > limit();
  if (std::isfinite(grad_norm) && !is_spike) {
    num_in_a_row_ = 0;
    ++num_good_;
    const double memory = std::min(static_cast<double>(num_good_), kSlowness);
    usual_norm_ += (grad_norm - usual_norm_) / memory;
    return true;
  }
  ++num_all_;
  ++num_in_a_row_;
  const std::string what =
      is_spike ? fmt::format("has a gradient of norm {:.4g}, {:.1f} times the usual {:.4g}",
                             grad_norm, grad_norm / usual_norm_, usual_norm_)
               : "has a gradient that is not finite";
  if (options_.on_bad_step == BadStepRule::Stop) {
    throw UsageError(
        "step {} {}; lower train.lr, or set train.on_bad_step = \"skip\" to leave such steps out",
        step, what);
  }
  if (num_in_a_row_ > options_.max_bad_steps) {
    throw UsageError(
        "step {} {}, and so were the {} before it: the model does not recover; lower train.lr, or "
        "look at the data of these steps",
        step, what, num_in_a_row_ - 1);
  }
  return false;
}

std::string BadSteps::state() const {
  return fmt::format("{} {} {} {}", num_all_, num_in_a_row_, num_good_, usual_norm_);
}

void BadSteps::restore(const std::string& state) {
  std::istringstream stream(state);
  std::string norm;
  stream >> num_all_ >> num_in_a_row_ >> num_good_ >> norm;
  const auto usual_norm = base::parse_real(norm);  // streams do not read infinities
  if (!stream || !usual_norm) {
    throw FormatError("the checkpoint's count of bad steps is \"{}\", not four numbers", state);
  }
  usual_norm_ = *usual_norm;
}

}  // namespace lockstep::train
