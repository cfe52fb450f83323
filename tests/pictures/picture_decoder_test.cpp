#include "pictures/picture_decoder.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/dice.h"
#include "pictures/picture_crop.h"
#include "pictures/picture_files.h"
#include "pictures/picture_resize.h"

namespace lockstep {
namespace {

using test::gradient;
using test::jpeg_bytes;
using test::JpegKind;
using test::PictureOptions;
using test::png_bytes;
using test::PngKind;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct Decoded {
  pictures::PictureSize whole;
  pictures::Picture picture;
  std::vector<float> values;  // resized, bytes as they are
};

constexpr pictures::ResizeOptions kAsBytes{.size = {}, .scale = {1, 1, 1}, .shift = {}};

Decoded decode(const std::string& bytes, pictures::PictureBox box, pictures::PictureSize size,
               bool flip = false) {
  const std::string name = "picture";
  const auto decoder = pictures::open_picture(std::as_bytes(std::span(bytes)), name);
  Decoded decoded{.whole = decoder->size(), .picture = {}, .values = {}};
  decoder->decode({.box = box, .size = size}, decoded.picture);
  pictures::ResizeOptions options = kAsBytes;
  options.size = size;
  options.flip = flip;
  decoded.values.resize(static_cast<size_t>(3 * size.width * size.height));
  pictures::resize_picture(decoded.picture, options, decoded.values);
  return decoded;
}

Decoded decode_whole(const std::string& bytes, int width, int height) {
  return decode(bytes, {0, 0, width + 0.0, height + 0.0}, {width, height});
}

// The largest difference to the picture itself, as three planes.
double worst(const Decoded& decoded, const PictureOptions& picture) {
  double most = 0;
  const auto plane = static_cast<size_t>(picture.width * picture.height);
  for (int y = 0; y < picture.height; ++y) {
    for (int x = 0; x < picture.width; ++x) {
      const auto [red, green, blue] = picture.colour(x, y);
      const auto at = static_cast<size_t>(y * picture.width + x);
      most = std::max({most, std::abs(decoded.values[at] - red + 0.0),
                       std::abs(decoded.values[plane + at] - green + 0.0),
                       std::abs(decoded.values[2 * plane + at] - blue + 0.0)});
    }
  }
  return most;
}

TEST(PictureDecoder, ReadsEveryKindOfJpeg) {
  for (const auto& [width, height] : {std::pair(64, 48), std::pair(1, 1), std::pair(37, 101)}) {
    const PictureOptions picture = gradient(width, height);
    for (const JpegKind kind : {JpegKind::Usual, JpegKind::Progressive, JpegKind::Cmyk}) {
      const Decoded decoded = decode_whole(jpeg_bytes(picture, kind), width, height);
      EXPECT_EQ(decoded.whole.width, width);
      EXPECT_EQ(decoded.whole.height, height);
      EXPECT_LT(worst(decoded, picture), width == 1 ? 4 : 16) << width << " kind " << int(kind);
    }
  }
  const Decoded gray = decode_whole(jpeg_bytes(gradient(64, 48), JpegKind::Gray), 64, 48);
  EXPECT_EQ(gray.values[100], gray.values[100 + 64 * 48]);
}

TEST(PictureDecoder, ReadsEveryKindOfPngExactly) {
  for (const auto& [width, height] : {std::pair(64, 48), std::pair(1, 1), std::pair(37, 101)}) {
    const PictureOptions picture = gradient(width, height);
    for (const PngKind kind : {PngKind::Rgb, PngKind::Rgba, PngKind::Rgb16, PngKind::Interlaced}) {
      EXPECT_LE(worst(decode_whole(png_bytes(picture, kind), width, height), picture),
                kind == PngKind::Rgb16 ? 1 : 0)
          << width << " kind " << int(kind);
    }
  }
  const Decoded gray = decode_whole(png_bytes(gradient(64, 48), PngKind::Gray), 64, 48);
  EXPECT_EQ(gray.values[100], gray.values[100 + 64 * 48]);
}

TEST(PictureDecoder, APartIsThatPartOfTheWholePicture) {
  const PictureOptions picture = gradient(320, 240);
  const std::string jpeg = jpeg_bytes(picture);
  const std::string png = png_bytes(picture);
  base::Dice dice(1, 1);
  for (int i = 0; i < 100; ++i) {
    const pictures::PictureBox box = pictures::random_box({320, 240}, dice);
    const pictures::PictureSize size{static_cast<int64_t>(1 + dice.below(100)),
                                     static_cast<int64_t>(1 + dice.below(100))};
    const Decoded part = decode(jpeg, box, size);
    const Decoded exact = decode(png, box, size);
    EXPECT_LE(part.picture.size.width, 320);
    double most = 0;
    for (size_t k = 0; k < part.values.size(); ++k) {
      most = std::max(most, std::abs(part.values[k] - exact.values[k] + 0.0));
    }
    EXPECT_LT(most, 8) << box.left << " " << box.top << " " << box.width << " " << box.height
                       << " to " << size.width << " x " << size.height;
  }
}

TEST(PictureDecoder, DecodesAJpegAtTheSmallestSufficientSize) {
  const std::string jpeg = jpeg_bytes(gradient(800, 800));
  const auto side = [&](int64_t size) {
    return decode(jpeg, {0, 0, 800, 800}, {size, size}).picture.size.width;
  };
  EXPECT_EQ(side(100), 100);
  EXPECT_EQ(side(101), 200);
  EXPECT_EQ(side(400), 400);
  EXPECT_EQ(side(401), 800);
  const Decoded corner = decode(jpeg, {600, 700, 100, 100}, {100, 100});
  EXPECT_LT(corner.picture.size.width, 140);
  EXPECT_LT(corner.picture.size.height, 120);
}

TEST(PictureResize, KeepsAFlatPictureFlatAndFlips) {
  const PictureOptions flat{.width = 50, .height = 30, .colour = [](int, int) {
                              return test::Rgb{10, 20, 30};
                            }};
  const Decoded decoded = decode(png_bytes(flat), {3.3, 1.7, 40.1, 25.5}, {77, 13});
  for (size_t i = 0; i < decoded.values.size(); ++i) {
    ASSERT_NEAR(decoded.values[i], 10.0f * static_cast<float>(1 + i / (77 * 13)), 1e-3);
  }
  const PictureOptions picture = gradient(40, 20);
  const Decoded straight = decode(png_bytes(picture), {0, 0, 40, 20}, {10, 10});
  const Decoded flipped = decode(png_bytes(picture), {0, 0, 40, 20}, {10, 10}, true);
  for (size_t x = 0; x < 10; ++x) {
    EXPECT_EQ(straight.values[x], flipped.values[9 - x]);
  }
}

TEST(PictureCrop, IsInsideThePictureAndInTheMiddle) {
  base::Dice dice(3, 3);
  for (const pictures::PictureSize size :
       {pictures::PictureSize{500, 375}, pictures::PictureSize{1, 1},
        pictures::PictureSize{10, 4000}}) {
    for (int i = 0; i < 200; ++i) {
      const pictures::PictureBox box = pictures::random_box(size, dice);
      EXPECT_GE(box.left, 0);
      EXPECT_GE(box.top, 0);
      EXPECT_GE(box.width, 1);
      EXPECT_GE(box.height, 1);
      EXPECT_LE(box.left + box.width, size.width);
      EXPECT_LE(box.top + box.height, size.height);
    }
  }
  const pictures::PictureBox box = pictures::centre_box({512, 256}, 224);
  EXPECT_DOUBLE_EQ(box.left, 144);
  EXPECT_DOUBLE_EQ(box.top, 16);
  EXPECT_DOUBLE_EQ(box.width, 224);
  EXPECT_DOUBLE_EQ(box.height, 224);
}

void refuses(const std::string& bytes, const char* what) {
  EXPECT_THAT(
      [&] {
        decode(bytes, {0, 0, 8, 8}, {8, 8});
      },
      ThrowsMessage<FormatError>(HasSubstr(what)));
}

TEST(PictureDecoder, RefusesWhatIsNone) {
  refuses("", "0 bytes that begin neither as a JPEG nor as a PNG");
  refuses("GIF89a", "picture: 6 bytes that begin neither");
  refuses("\xff\xd8\xff", "JPEG: ");
  std::string jpeg = jpeg_bytes(gradient(64, 48));
  refuses(jpeg.substr(0, jpeg.size() - 50), "it has no end mark; it is truncated");
  refuses(jpeg.substr(0, 100), "JPEG: Premature end of JPEG file");
  refuses(jpeg.substr(0, jpeg.size() - 2), "it is truncated");
  std::string png = png_bytes(gradient(64, 48));
  refuses(png.substr(0, png.size() / 2), "PNG: it is truncated");
  refuses(png.substr(0, png.size() - 4), "PNG: it is truncated");
  png[50] = static_cast<char>(png[50] ^ 1);
  refuses(png, "PNG: ");
  std::string vast = png_bytes(gradient(8, 8));
  vast.replace(16, 4, std::string("\x00\x00\xff\xff", 4));  // the width; its checksum is wrong too
  refuses(vast, "PNG: ");
}

// A JPEG whose header promises more than the limit.
TEST(PictureDecoder, RefusesWhatIsTooLarge) {
  std::string jpeg = jpeg_bytes(gradient(64, 48));
  const size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  jpeg.replace(frame + 5, 4, "\xff\xd0\xff\xd0");
  refuses(jpeg, "a picture of 65488 x 65488 pixels; the limits are");
}

// Whatever happens to the bytes: a picture, or an error.
TEST(PictureDecoder, SurvivesDamage) {
  base::Dice dice(5, 5);
  int num_refused = 0;
  const std::string whole[] = {
      jpeg_bytes(gradient(64, 48)), jpeg_bytes(gradient(64, 48), JpegKind::Progressive),
      png_bytes(gradient(64, 48)), png_bytes(gradient(64, 48), PngKind::Interlaced)};
  for (int i = 0; i < 4000; ++i) {
    std::string bytes = whole[i % 4];
    for (size_t k = 0; k < 1 + dice.below(4); ++k) {
      bytes[dice.below(bytes.size())] = static_cast<char>(dice.bits());
    }
    if (dice.below(4) == 0) {
      bytes.resize(dice.below(bytes.size()));
    }
    try {
      const std::string name = "picture";
      const auto decoder = pictures::open_picture(std::as_bytes(std::span(bytes)), name);
      if (decoder->size().width * decoder->size().height > 1 << 20) {
        continue;  // memory for nothing
      }
      pictures::Picture picture;
      decoder->decode({.box = pictures::random_box(decoder->size(), dice), .size = {16, 16}},
                      picture);
      std::vector<float> values(3 * 16 * 16);
      pictures::ResizeOptions options = kAsBytes;
      options.size = {16, 16};
      pictures::resize_picture(picture, options, values);
    } catch (const FormatError&) {
      ++num_refused;
    }
  }
  EXPECT_GT(num_refused, 100);
}

}  // namespace
}  // namespace lockstep
