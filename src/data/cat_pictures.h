#pragma once

// Pictures of cats, and of things made of the same parts that are no cats.
//
// Every picture is drawn from (seed, number): no file, no download, the same bits on every rank. A
// cat has a round head, two ears on top, two eyes above a nose, and whiskers. A not-cat has the
// same parts, sizes and colours in another arrangement: the ears below or at one side, and in every
// other one the face upside down as well. Place, size, tilt, light and noise vary, and light
// animals sit before dark walls as often as dark ones before light walls, so that no pixel by
// itself tells much: a model has to see the arrangement.

#include <cstdint>

#include <lockstep/data/batches.h>

namespace lockstep::data {

inline constexpr int64_t kPictureSize = 32;     // pixels, both ways
inline constexpr int64_t kPictureChannels = 3;  // red, green, blue
inline constexpr int64_t kPictureClasses = 2;   // 0: not a cat, 1: a cat

struct CatPictureOptions {
  int64_t num_pictures = 400;  // > 0; every other one, beginning with the first, is a cat
  uint64_t seed = 1;           // other seeds give other pictures
};

// Input: float [num_pictures, 3, 32, 32] in [0, 1]; target: int64 [num_pictures], 1 for a cat.
// Throws UsageError when there is nothing to draw.
TensorDataset draw_cat_pictures(const CatPictureOptions& options);

}  // namespace lockstep::data
