#pragma once

// Decides which steps are too bad to take; see trainer.h.

#include <cstdint>

#include <lockstep/train/trainer.h>

namespace lockstep::train {

class BadSteps {
 public:
  explicit BadSteps(const TrainerOptions& options) : options_(options) {}

  // The largest norm that the next step may have; infinity where there is no limit.
  double limit() const;

  // Whether a step with this norm of all gradients may be taken. Throws UsageError where the rule
  // is to stop.
  bool accept(int64_t step, double grad_norm);

  // Counts a step that was left out for a reason of others.
  void count_left_out() { ++num_all_; }

  int64_t num_all() const { return num_all_; }

  // Returns all that it remembers as text, bit for bit.
  std::string state() const;
  void restore(const std::string& state);

 private:
  TrainerOptions options_;
  int64_t num_all_ = 0;
  int64_t num_in_a_row_ = 0;
  int64_t num_good_ = 0;
  double usual_norm_ = 0;  // a slow average over good steps
};

}  // namespace lockstep::train
