#pragma once

// A state to save: tensors of every type and of awkward sizes, whose bits follow from a seed.

#include <string>
#include <vector>

#include <lockstep/checkpoint/checkpoint.h>

namespace lockstep::test {

std::vector<NamedTensor> sample_state(uint64_t seed);

// Tensors of the same shapes, with other bits.
std::vector<WeightTarget> targets_like(const std::vector<NamedTensor>& state);

void expect_same_bits(const std::vector<WeightTarget>& found,
                      const std::vector<NamedTensor>& wanted);

// Saves sample_state(step) and waits.
SaveResult save(CheckpointWriter& writer, int64_t step, std::optional<double> score = {});

// Loads what find_checkpoint() finds, compares it with sample_state(step) and returns the step; -1
// if it finds nothing.
int64_t load_newest(const std::string& location, Group& group);

// Names in a folder, sorted, without the record of who writes there.
std::vector<std::string> names_in(const std::string& folder);

// Lines that the log gets at level Warn while it lives.
class Warnings {
 public:
  Warnings();
  ~Warnings();
  Warnings(const Warnings&) = delete;
  std::string text() const;
};

}  // namespace lockstep::test
