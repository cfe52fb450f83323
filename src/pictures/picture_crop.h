#pragma once

#include <cstdint>

#include "base/dice.h"
#include "pictures/picture_decoder.h"

namespace lockstep::pictures {

// A random part of the picture: 8 % to 100 % of its area, 3:4 to 4:3 in shape; in the middle, as
// large as that shape allows, if ten throws find none. As torchvision's RandomResizedCrop.
PictureBox random_box(PictureSize picture, base::Dice& dice);

// What is left in the middle when the shorter side is resized to 256/224 of `size` and a square of
// `size` is cut out.
PictureBox centre_box(PictureSize picture, int64_t size);

}  // namespace lockstep::pictures
