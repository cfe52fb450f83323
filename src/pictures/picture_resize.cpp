#include "pictures/picture_resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <lockstep/base/error.h>

namespace lockstep::pictures {

namespace {

// Four floats that the compiler keeps in one register.
typedef float Four __attribute__((vector_size(16)));

Four load(const float* from) {
  Four four;
  std::memcpy(&four, from, sizeof four);
  return four;
}

// Which pixels of a line each result is made of. All have room for the same number of weights.
struct Taps {
  struct Window {
    int64_t first = 0;
    int64_t count = 0;
  };
  std::vector<Window> windows;
  std::vector<float> weights;
  int64_t room = 0;

  const float* weights_of(int64_t i) const { return weights.data() + i * room; }
};

// A line of `num_pixels`, of which [begin, begin + length) becomes `num_results` pixels.
Taps make_taps(double begin, double length, int64_t num_pixels, int64_t num_results) {
  const double step = length / static_cast<double>(num_results);
  const double reach = std::max(step, 1.0);
  Taps taps;
  taps.room = static_cast<int64_t>(std::ceil(reach)) * 2 + 1;
  taps.windows.resize(static_cast<size_t>(num_results));
  taps.weights.resize(static_cast<size_t>(num_results * taps.room));
  for (int64_t i = 0; i < num_results; ++i) {
    const double centre = begin + (static_cast<double>(i) + 0.5) * step;
    const auto first = std::clamp(int64_t{std::lround(centre - reach)}, int64_t{0}, num_pixels - 1);
    const auto end = std::clamp(int64_t{std::lround(centre + reach)}, first + 1,
                                std::min(num_pixels, first + taps.room));
    float* const weights = taps.weights.data() + i * taps.room;
    double sum = 0;
    for (int64_t k = first; k < end; ++k) {
      const double distance = std::abs(static_cast<double>(k) + 0.5 - centre) / reach;
      const double weight = std::max(1 - distance, 0.0);
      weights[k - first] = static_cast<float>(weight);
      sum += weight;
    }
    if (sum == 0) {  // the box goes beyond the line: its last pixel
      weights[0] = 1;
      sum = 1;
    }
    for (int64_t k = 0; k < end - first; ++k) {
      weights[k] = static_cast<float>(weights[k] / sum);
    }
    taps.windows[static_cast<size_t>(i)] = {.first = first, .count = end - first};
  }
  return taps;
}

// line = the weighted sum of the rows of a window.
void mix_rows(const uint8_t* rows, size_t row_bytes, std::span<const float> weights, float* line) {
  const float first = weights[0];
  for (size_t x = 0; x < row_bytes; ++x) {
    line[x] = first * static_cast<float>(rows[x]);
  }
  for (size_t k = 1; k < weights.size(); ++k) {
    const float weight = weights[k];
    const uint8_t* const row = rows + k * row_bytes;
    for (size_t x = 0; x < row_bytes; ++x) {
      line[x] += weight * static_cast<float>(row[x]);
    }
  }
}

}  // namespace

void resize_picture(const Picture& picture, const ResizeOptions& options, std::span<float> out) {
  const int64_t width = options.size.width;
  const int64_t height = options.size.height;
  LOCKSTEP_CHECK(std::ssize(out) == 3 * width * height, "room for {} floats", out.size());
  const Taps across = make_taps(picture.box.left, picture.box.width, picture.size.width, width);
  const Taps down = make_taps(picture.box.top, picture.box.height, picture.size.height, height);
  const Four scale{options.scale[0], options.scale[1], options.scale[2], 0};
  const Four shift{options.shift[0], options.shift[1], options.shift[2], 0};
  const size_t row_bytes = static_cast<size_t>(picture.size.width) * 3;
  std::vector<float> line(row_bytes + 1);  // the last pixel is loaded with what is behind it
  for (int64_t y = 0; y < height; ++y) {
    const Taps::Window rows = down.windows[static_cast<size_t>(y)];
    mix_rows(picture.rgb.data() + static_cast<size_t>(rows.first) * row_bytes, row_bytes,
             {down.weights_of(y), static_cast<size_t>(rows.count)}, line.data());
    float* const red = out.data() + y * width;
    float* const green = red + width * height;
    float* const blue = green + width * height;
    for (int64_t x = 0; x < width; ++x) {
      const Taps::Window window = across.windows[static_cast<size_t>(x)];
      const float* const weights = across.weights_of(x);
      const float* from = line.data() + window.first * 3;
      Four sum{};
      for (int64_t k = 0; k < window.count; ++k, from += 3) {
        sum += weights[k] * load(from);
      }
      sum = sum * scale + shift;
      const int64_t to = options.flip ? width - 1 - x : x;
      red[to] = sum[0];
      green[to] = sum[1];
      blue[to] = sum[2];
    }
  }
}

}  // namespace lockstep::pictures
