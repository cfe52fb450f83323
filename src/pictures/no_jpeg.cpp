// Built where libjpeg was not found.

#include <lockstep/base/error.h>

#include "pictures/picture_decoder.h"
#include "pictures/picture_encoder.h"

namespace lockstep::pictures {

namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw UsageError(
      "cannot {}: this lockstep was built without libjpeg; install libjpeg62-turbo-dev and build "
      "it again",
      what);
}

}  // namespace

std::unique_ptr<PictureDecoder> open_jpeg(std::span<const std::byte> /*bytes*/,
                                          const std::string& name) {
  refuse("decode " + name);
}

std::string encode_jpeg(const Picture& /*picture*/) {
  refuse("write a JPEG");
}

}  // namespace lockstep::pictures
