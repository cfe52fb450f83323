#include "data/cat_pictures.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <ATen/ops/empty.h>

#include <lockstep/base/error.h>

#include "base/dice.h"
#include "data/picture_shapes.h"

namespace lockstep::data {
namespace {

// Where the parts of one picture are, in units of the head's radius around its centre.
struct Arrangement {
  std::array<float, 2> ear_angles;  // from straight up, clockwise
  std::array<Point, 2> eyes;
  float face_up = 1.0f;  // -1: nose and whiskers above the eyes
};

Arrangement arrange(bool is_cat, base::Dice& dice) {
  const float spread = radians(dice.uniform(32, 44));
  const float apart = dice.uniform(0.38f, 0.46f);
  // Thrown for cats too: the noise that follows must not depend on what is drawn.
  const std::array<float, 4> wrong_turns = {180, 180, 90, -90};
  const float turn = radians(wrong_turns[dice.below(wrong_turns.size())]);
  const bool face_upside_down = dice.coin();

  Arrangement parts{{-spread, spread}, {{{-apart, -0.18f}, {apart, -0.18f}}}, 1.0f};
  if (is_cat) {
    return parts;
  }
  for (float& angle : parts.ear_angles) {
    angle += turn;
  }
  if (face_upside_down) {
    parts.face_up = -1.0f;
    for (Point& eye : parts.eyes) {
      eye.y = -eye.y;
    }
  }
  return parts;
}

struct Look {
  Colour fur, wall, eye, nose, ear;
  float brightness, noise;
};

Look choose_look(base::Dice& dice) {
  static constexpr std::array<Colour, 6> kFurs = {{{0.86f, 0.52f, 0.20f},
                                                   {0.16f, 0.15f, 0.17f},
                                                   {0.52f, 0.53f, 0.56f},
                                                   {0.93f, 0.91f, 0.87f},
                                                   {0.42f, 0.28f, 0.18f},
                                                   {0.90f, 0.78f, 0.58f}}};
  static constexpr std::array<Colour, 6> kWalls = {{{0.22f, 0.42f, 0.24f},
                                                    {0.58f, 0.76f, 0.92f},
                                                    {0.12f, 0.14f, 0.30f},
                                                    {0.88f, 0.84f, 0.74f},
                                                    {0.46f, 0.22f, 0.26f},
                                                    {0.70f, 0.82f, 0.62f}}};
  static constexpr std::array<Colour, 3> kEyes = {
      {{0.85f, 0.80f, 0.20f}, {0.35f, 0.75f, 0.35f}, {0.35f, 0.65f, 0.90f}}};
  constexpr float kContrast = 0.25f;

  Look look;
  look.fur = kFurs[dice.below(kFurs.size())];
  do {
    look.wall = kWalls[dice.below(kWalls.size())];
  } while (std::abs(look.wall.light() - look.fur.light()) < kContrast);
  look.eye = kEyes[dice.below(kEyes.size())];
  look.nose = {0.92f, 0.48f, 0.50f};
  look.ear = {0.85f, 0.58f, 0.56f};
  look.brightness = dice.uniform(0.75f, 1.15f);
  look.noise = dice.uniform(0.02f, 0.07f);
  return look;
}

// Where the head is: pixels = centre + scale * rotated units.
struct Pose {
  Point centre;
  float scale, cosine, sine;

  Point to_units(Point pixel) const {
    const Point d = pixel - centre;
    return {(cosine * d.x + sine * d.y) / scale, (cosine * d.y - sine * d.x) / scale};
  }
};

Pose choose_pose(base::Dice& dice) {
  const float scale = dice.uniform(8.0f, 10.0f);
  const float reach =
      std::max(1.0f, kPictureSize / 2 - 1.5f * scale);  // the ears stay in the picture
  const float turn = radians(dice.uniform(-15, 15));
  return {{kPictureSize / 2 + dice.uniform(-reach, reach),
           kPictureSize / 2 + dice.uniform(-reach, reach)},
          scale,
          std::cos(turn),
          std::sin(turn)};
}

// Paints one picture's pixel after pixel, part over part.
class Painter {
 public:
  Painter(const Arrangement& parts, const Look& look, const Pose& pose)
      : parts_(parts), look_(look), pose_(pose) {}

  Colour at(Point pixel) {
    const Point p = pose_.to_units(pixel);
    colour_ = look_.wall;
    paint_head(p);
    paint_face(p);
    return colour_;
  }

 private:
  void cover(float distance, Colour paint) {
    // The edge is one pixel wide: what lies half a pixel inside is covered fully.
    const float share = std::clamp(0.5f - distance * pose_.scale, 0.0f, 1.0f);
    colour_ = {colour_.red + share * (paint.red - colour_.red),
               colour_.green + share * (paint.green - colour_.green),
               colour_.blue + share * (paint.blue - colour_.blue)};
  }

  void paint_head(Point p) {
    constexpr float kEarHalfWidth = radians(24);
    for (const float angle : parts_.ear_angles) {
      const auto ear = [&](float half_width, float base, float tip) {
        return std::array<Point, 3>{polar(angle - half_width, base), polar(angle, tip),
                                    polar(angle + half_width, base)};
      };
      cover(to_triangle(p, ear(kEarHalfWidth, 0.9f, 1.6f)), look_.fur);
      cover(to_triangle(p, ear(kEarHalfWidth * 0.5f, 0.95f, 1.4f)), look_.ear);
    }
    cover(to_ellipse(p, {0, 0}, {1, 1}), look_.fur);
  }

  void paint_face(Point p) {
    const Colour dark{0.05f, 0.05f, 0.06f}, pale{0.97f, 0.97f, 0.95f};
    const Colour whisker = look_.fur.light() > 0.45f ? dark : pale;
    const float up = parts_.face_up;
    for (const float side : {-1.0f, 1.0f}) {
      for (const float slope : {0.30f, 0.52f}) {
        cover(to_line(p, {side * 0.22f, up * 0.40f}, {side * 0.95f, up * slope}, 0.02f), whisker);
      }
    }
    for (const Point& eye : parts_.eyes) {
      cover(to_ellipse(p, eye, {0.25f, 0.22f}), look_.eye);
      cover(to_ellipse(p, eye, {0.10f, 0.20f}), dark);
    }
    const float nose_y = up * 0.28f;
    cover(to_triangle(p, {{{-0.17f, nose_y}, {0.17f, nose_y}, {0, nose_y + up * 0.2f}}}),
          look_.nose);
  }

  const Arrangement& parts_;
  const Look& look_;
  const Pose& pose_;
  Colour colour_{};
};

// `rgb`: three planes of kPictureSize * kPictureSize floats.
void draw(float* rgb, bool is_cat, base::Dice dice) {
  const Look look = choose_look(dice);
  const Pose pose = choose_pose(dice);
  const Arrangement parts = arrange(is_cat, dice);
  Painter painter(parts, look, pose);
  constexpr int64_t kPlane = kPictureSize * kPictureSize;
  for (int64_t i = 0; i < kPlane; ++i) {
    const Colour colour = painter.at(
        {static_cast<float>(i % kPictureSize) + 0.5f, static_cast<float>(i / kPictureSize) + 0.5f});
    const std::array<float, 3> values = {colour.red, colour.green, colour.blue};
    for (size_t c = 0; c < values.size(); ++c) {
      const float value = values[c] * look.brightness + look.noise * dice.noise();
      rgb[static_cast<int64_t>(c) * kPlane + i] = std::clamp(value, 0.0f, 1.0f);
    }
  }
}

}  // namespace

TensorDataset draw_cat_pictures(const CatPictureOptions& options) {
  if (options.num_pictures < 1) {
    throw UsageError("cat pictures: num_pictures is {}, it must be at least 1",
                     options.num_pictures);
  }
  const int64_t n = options.num_pictures;
  TensorDataset data{at::empty({n, kPictureChannels, kPictureSize, kPictureSize}, at::kFloat),
                     at::empty({n}, at::kLong)};
  float* pixels = data.input.mutable_data_ptr<float>();
  int64_t* labels = data.target.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < n; ++i) {
    const bool is_cat = i % 2 == 0;
    draw(pixels + i * kPictureChannels * kPictureSize * kPictureSize, is_cat,
         base::Dice(options.seed, static_cast<uint64_t>(i)));
    labels[i] = is_cat ? 1 : 0;
  }
  return data;
}

}  // namespace lockstep::data
