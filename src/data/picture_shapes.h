#pragma once

// Colours, and distances from a point to shapes: to paint edges without steps, a pixel is covered
// by a share that depends on how far inside the shape it lies.

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

namespace lockstep::data {

struct Colour {
  float red, green, blue;
  float light() const { return 0.3f * red + 0.6f * green + 0.1f * blue; }
};

struct Point {
  float x, y;  // y grows downwards, as in pictures
};

inline Point operator-(Point a, Point b) {
  return {a.x - b.x, a.y - b.y};
}
inline float dot(Point a, Point b) {
  return a.x * b.x + a.y * b.y;
}
inline float length(Point a) {
  return std::sqrt(dot(a, a));
}

constexpr float radians(float degrees) {
  return degrees * std::numbers::pi_v<float> / 180.0f;
}

// At `angle` from straight up, clockwise, `radius` away.
inline Point polar(float angle, float radius) {
  return {radius * std::sin(angle), -radius * std::cos(angle)};
}

// Distances from `p` to the edge of a shape, negative inside.
inline float to_ellipse(Point p, Point centre, Point radii) {
  const Point d = p - centre;
  const float scaled = length({d.x / radii.x, d.y / radii.y});
  return (scaled - 1.0f) * std::min(radii.x, radii.y);
}

inline float to_line(Point p, Point from, Point to, float half_width) {
  const Point along = to - from;
  const float t = std::clamp(dot(p - from, along) / dot(along, along), 0.0f, 1.0f);
  return length(p - from - Point{t * along.x, t * along.y}) - half_width;
}

inline float to_triangle(Point p, const std::array<Point, 3>& corners) {
  float farthest = -1e9f;
  const Point ab = corners[1] - corners[0], ac = corners[2] - corners[0];
  const float side = ab.x * ac.y - ab.y * ac.x > 0 ? 1.0f : -1.0f;
  for (size_t i = 0; i < 3; ++i) {
    const Point edge = corners[(i + 1) % 3] - corners[i];
    const Point outward{side * edge.y / length(edge), -side * edge.x / length(edge)};
    farthest = std::max(farthest, dot(p - corners[i], outward));
  }
  return farthest;
}

}  // namespace lockstep::data
