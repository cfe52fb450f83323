// Built where libpng was not found.

#include <lockstep/base/error.h>

#include "pictures/picture_decoder.h"

namespace lockstep::pictures {

std::unique_ptr<PictureDecoder> open_png(std::span<const std::byte> /*bytes*/,
                                         const std::string& name) {
  throw UsageError(
      "cannot decode {}: this lockstep was built without libpng; install "
      "libpng-dev and build it again",
      name);
}

}  // namespace lockstep::pictures
