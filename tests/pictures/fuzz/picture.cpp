// Any bytes as a picture: decoded, or refused with a FormatError.

#include <lockstep/base/error.h>

#include "base/dice.h"
#include "pictures/picture_crop.h"
#include "pictures/picture_decoder.h"
#include "pictures/picture_resize.h"

namespace {

constexpr int64_t kMaxPixels = 1 << 20;  // more is the same, slower

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  static const std::string name = "input";
  try {
    const auto decoder =
        pictures::open_picture({reinterpret_cast<const std::byte*>(data), size}, name);
    if (decoder->size().width * decoder->size().height > kMaxPixels) {
      return 0;
    }
    base::Dice dice(size, 0);
    pictures::Picture picture;
    decoder->decode({.box = pictures::random_box(decoder->size(), dice), .size = {16, 16}},
                    picture);
    std::vector<float> values(3 * 16 * 16);
    pictures::resize_picture(picture, {.size = {16, 16}, .scale = {1, 1, 1}, .shift = {}}, values);
  } catch (const FormatError&) {
  }
  return 0;
}
