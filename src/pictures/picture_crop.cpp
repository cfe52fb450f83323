#include "pictures/picture_crop.h"

#include <algorithm>
#include <cmath>

namespace lockstep::pictures {

namespace {

constexpr int kThrows = 10;
constexpr float kLeastArea = 0.08f;
constexpr double kNarrowest = 3.0 / 4;
constexpr double kWidest = 4.0 / 3;

double between(base::Dice& dice, double most) {
  return static_cast<double>(dice.below(static_cast<size_t>(most) + 1));
}

}  // namespace

PictureBox random_box(PictureSize picture, base::Dice& dice) {
  const auto width = static_cast<double>(picture.width);
  const auto height = static_cast<double>(picture.height);
  for (int i = 0; i < kThrows; ++i) {
    const double area = width * height * dice.uniform(kLeastArea, 1);
    const double shape = std::exp(std::log(kNarrowest) +
                                  (std::log(kWidest) - std::log(kNarrowest)) * dice.uniform(0, 1));
    const double w = std::round(std::sqrt(area * shape));
    const double h = std::round(std::sqrt(area / shape));
    if (w >= 1 && h >= 1 && w <= width && h <= height) {
      const double top = between(dice, height - h);
      const double left = between(dice, width - w);
      return {.left = left, .top = top, .width = w, .height = h};
    }
  }
  const double w = std::min(width, std::round(height * kWidest));
  const double h = std::min(height, std::round(width / kNarrowest));
  return {.left = std::floor((width - w) / 2),
          .top = std::floor((height - h) / 2),
          .width = w,
          .height = h};
}

PictureBox centre_box(PictureSize picture, int64_t size) {
  const auto width = static_cast<double>(picture.width);
  const auto height = static_cast<double>(picture.height);
  const auto side = static_cast<double>(size);
  const double shorter = std::round(side * 256 / 224);
  const double resized_width = width <= height ? shorter : std::floor(shorter * width / height);
  const double resized_height = width <= height ? std::floor(shorter * height / width) : shorter;
  const double across = width / resized_width;
  const double down = height / resized_height;
  // Halves to even, as Python rounds.
  return {.left = std::nearbyint((resized_width - side) / 2) * across,
          .top = std::nearbyint((resized_height - side) / 2) * down,
          .width = side * across,
          .height = side * down};
}

}  // namespace lockstep::pictures
