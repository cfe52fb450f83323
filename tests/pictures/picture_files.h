#pragma once

// Pictures for tests, written by the libraries that read them.

#include <cstdint>
#include <functional>
#include <string>

namespace lockstep::test {

struct Rgb {
  int red = 0;
  int green = 0;
  int blue = 0;
};

struct PictureOptions {
  int width = 0;
  int height = 0;
  std::function<Rgb(int x, int y)> colour;
};

// A smooth picture whose colours tell where they are.
PictureOptions gradient(int width, int height);

enum class JpegKind : uint8_t { Usual, Progressive, Gray, Cmyk };
std::string jpeg_bytes(const PictureOptions& picture, JpegKind kind = JpegKind::Usual);

enum class PngKind : uint8_t { Rgb, Gray, Rgba, Rgb16, Interlaced };
std::string png_bytes(const PictureOptions& picture, PngKind kind = PngKind::Rgb);

// Pictures of about one colour, a quarter of them PNG and the rest JPEG.
struct NoisyPictures {
  int num = 0;
  Rgb colour;         // of the darkest; up to 80 are added to each of its numbers
  unsigned seed = 1;  // of the noise
};

// Makes the folder: 0.png, 1.jpg, ...
void write_noisy_pictures(const std::string& folder, const NoisyPictures& pictures);

}  // namespace lockstep::test
