#pragma once

#include <string>

#include "pictures/picture_decoder.h"

namespace lockstep::pictures {

// A JPEG of the whole picture, of a camera's usual quality. Throws UsageError where lockstep was
// built without libjpeg, or for a picture beyond the limits.
std::string encode_jpeg(const Picture& picture);

}  // namespace lockstep::pictures
