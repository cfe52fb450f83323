#pragma once

// Pictures in files, decoded to pixels: JPEG by libjpeg-turbo and PNG by libpng. The bytes may be
// anything: what is no picture, is cut off or is larger than the limits is a FormatError.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace lockstep::pictures {

inline constexpr int64_t kMaxPictureSide = 65500;      // libjpeg's own limit
inline constexpr int64_t kMaxPicturePixels = 1 << 27;  // 400 MB of RGB

struct PictureSize {
  int64_t width = 0;
  int64_t height = 0;
};

// Part of a picture; it may begin and end inside a pixel.
struct PictureBox {
  double left = 0;
  double top = 0;
  double width = 0;
  double height = 0;
};

// Which part is wanted, and of how many pixels in the end.
struct PictureWish {
  PictureBox box;  // in pixels of the whole picture
  PictureSize size;
};

struct Picture {
  PictureSize size;
  std::vector<uint8_t> rgb;  // rows of pixels of three bytes
  PictureBox box;  // the wish's, in these pixels; there are some around it where there are
};

class PictureDecoder {
 public:
  virtual ~PictureDecoder() = default;

  virtual PictureSize size() const = 0;

  // Once. Decodes no more rows and columns than are needed, and, of a JPEG, at a half, a quarter or
  // an eighth of the size if that is still not smaller than the wish. `picture`'s memory is used
  // again.
  virtual void decode(const PictureWish& wish, Picture& picture) = 0;
};

// By its first bytes a JPEG or a PNG. Both must outlive it; `name` is for messages.
std::unique_ptr<PictureDecoder> open_picture(std::span<const std::byte> bytes,
                                             const std::string& name);

// jpeg_decoder.cpp and png_decoder.cpp, or no_jpeg.cpp and no_png.cpp where the library is missing.
std::unique_ptr<PictureDecoder> open_jpeg(std::span<const std::byte> bytes,
                                          const std::string& name);
std::unique_ptr<PictureDecoder> open_png(std::span<const std::byte> bytes, const std::string& name);

// Throws FormatError if a picture of that size is empty or beyond the limits.
void check_picture_size(PictureSize size, const std::string& name);

}  // namespace lockstep::pictures
