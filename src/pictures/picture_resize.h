#pragma once

#include <array>
#include <span>

#include "pictures/picture_decoder.h"

namespace lockstep::pictures {

struct ResizeOptions {
  PictureSize size;            // of the result
  bool flip = false;           // left and right
  std::array<float, 3> scale;  // value = byte * scale + shift, for red, green and blue
  std::array<float, 3> shift;
};

// The picture's box, resized with a triangle filter that widens as the picture shrinks (bilinear
// with antialiasing, as Pillow's and torchvision's), as rows of red, then of green, then of blue.
// `out` has room for three planes of size.
void resize_picture(const Picture& picture, const ResizeOptions& options, std::span<float> out);

}  // namespace lockstep::pictures
