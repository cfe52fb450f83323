#include "data/picture_text.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep::data {
namespace {

struct Rgb {
  int red, green, blue;  // in [0, 255]
};

// Reads pixels of a float [3, height, width] picture.
class PixelReader {
 public:
  explicit PixelReader(const at::Tensor& picture)
      : picture_(picture.contiguous()), height_(picture.size(1)), width_(picture.size(2)) {}

  Rgb at(int64_t row, int64_t column) const {
    const float* values = picture_.const_data_ptr<float>() + row * width_ + column;
    const auto level = [&](int64_t channel) {
      const float value = values[channel * height_ * width_];
      return static_cast<int>(std::lround(std::clamp(value, 0.0f, 1.0f) * 255.0f));
    };
    return {level(0), level(1), level(2)};
  }

 private:
  at::Tensor picture_;
  int64_t height_;
  int64_t width_;
};

void check(const std::vector<at::Tensor>& pictures) {
  for (const auto& picture : pictures) {
    if (picture.dim() != 3 || picture.size(0) != 3 || picture.scalar_type() != at::kFloat ||
        picture.sizes() != pictures.front().sizes()) {
      throw UsageError("picture text: pictures must be float [3, height, width], all of one size");
    }
  }
}

std::string colour_row(const std::vector<PixelReader>& pictures, int64_t row,
                       at::IntArrayRef sizes) {
  std::string line;
  for (const auto& picture : pictures) {
    for (int64_t column = 0; column < sizes[2]; ++column) {
      const Rgb top = picture.at(row, column);
      const Rgb bottom = picture.at(std::min(row + 1, sizes[1] - 1), column);
      line += fmt::format("\x1b[38;2;{};{};{};48;2;{};{};{}m\u2580", top.red, top.green, top.blue,
                          bottom.red, bottom.green, bottom.blue);
    }
    line += "\x1b[0m  ";
  }
  return line + "\n";
}

std::string ascii_row(const std::vector<PixelReader>& pictures, int64_t row,
                      at::IntArrayRef sizes) {
  constexpr std::string_view kDarkToLight = " .:-=+*#%@";
  const auto light = [](Rgb pixel) { return (3 * pixel.red + 6 * pixel.green + pixel.blue) / 10; };
  std::string line;
  for (const auto& picture : pictures) {
    for (int64_t column = 0; column < sizes[2]; ++column) {
      const int top = light(picture.at(row, column));
      const int bottom = light(picture.at(std::min(row + 1, sizes[1] - 1), column));
      line += kDarkToLight[static_cast<size_t>(top + bottom) * kDarkToLight.size() / 512];
    }
    line += "  ";
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

}  // namespace

std::string picture_text(const std::vector<at::Tensor>& pictures, PictureStyle style) {
  if (pictures.empty()) {
    return "";
  }
  check(pictures);
  const at::IntArrayRef sizes = pictures.front().sizes();
  const std::vector<PixelReader> readers(pictures.begin(), pictures.end());
  const auto row_text = style == PictureStyle::Colour ? colour_row : ascii_row;
  std::string text;
  for (int64_t row = 0; row < sizes[1]; row += 2) {
    text += row_text(readers, row, sizes);
  }
  return text;
}

}  // namespace lockstep::data
