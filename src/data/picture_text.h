#pragma once

// Pictures as text, to look at them where no window is.

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::data {

// Either way a character stands for two pixels, one above the other: characters are twice as high
// as wide.
enum class PictureStyle {
  Colour,  // half blocks in 24-bit ANSI colours
  Ascii,   // how light the two are: for files, pipes and plain terminals
};

// Pictures (float [3, height, width] in [0, 1], all of one size) side by side, in lines.
// Throws UsageError for anything else.
std::string picture_text(const std::vector<at::Tensor>& pictures, PictureStyle style);

}  // namespace lockstep::data
