#pragma once

#include <cstdint>
#include <optional>

#include <lockstep/data/dataset.h>

namespace lockstep::data {

// The label that all samples of a dataset from open_labelled_text() have, if there are at least two
// samples and all have the same. It is known only where num_labels was given.
std::optional<int64_t> only_label(const Dataset& dataset);

}  // namespace lockstep::data
