#include "pictures/picture_decoder.h"

#include <string_view>

#include <lockstep/base/error.h>

namespace lockstep::pictures {

using namespace std::string_view_literals;

std::unique_ptr<PictureDecoder> open_picture(std::span<const std::byte> bytes,
                                             const std::string& name) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with("\xff\xd8\xff"sv)) {
    return open_jpeg(bytes, name);
  }
  if (text.starts_with("\x89PNG\r\n\x1a\n"sv)) {
    return open_png(bytes, name);
  }
  throw FormatError("{}: {} bytes that begin neither as a JPEG nor as a PNG", name, bytes.size());
}

void check_picture_size(PictureSize size, const std::string& name) {
  if (size.width < 1 || size.height < 1 || size.width > kMaxPictureSide ||
      size.height > kMaxPictureSide || size.width * size.height > kMaxPicturePixels) {
    throw FormatError("{}: a picture of {} x {} pixels; the limits are {} a side and {} in all",
                      name, size.width, size.height, kMaxPictureSide, kMaxPicturePixels);
  }
}

}  // namespace lockstep::pictures
