#pragma once

// Pictures with classes, from a folder of files or from tar shards. JPEG and PNG are decoded.
//
// Example:
//   auto train = lockstep::open_image_folder("imagenet/train", {.augment = true});
//   auto held_out = lockstep::open_image_folder("imagenet/val", {.classes = train->classes()});
//   auto shards = lockstep::open_image_shards(
//       {"s3://data/train-000.tar", "s3://data/train-001.tar"}, {.num_classes = 1000});

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/data/dataset.h>

namespace lockstep {

struct ImageOptions {
  int64_t size = 224;  // 1 to 4096: the width and height of what the model sees

  // true cuts out a random part of 8 % to 100 % of the area, between 3:4 and 4:3 in shape, resizes
  // it and mirrors half of the pictures, as SampleKey::seed says. false resizes the shorter side to
  // size * 256 / 224 and cuts out the centre.
  bool augment = false;

  // The mean and the standard deviation of red, green and blue in [0, 1]. What comes out is
  // (value - mean) / std.
  std::array<float, 3> mean{0.485f, 0.456f, 0.406f};
  std::array<float, 3> std{0.229f, 0.224f, 0.225f};

  CorruptSample on_corrupt = CorruptSample::Fatal;  // for a picture that cannot be decoded

  // For a folder: the names of the classes by number, as classes() of the training data returns
  // them. A subfolder that is not listed is a UsageError. Empty takes the subfolders as they are.
  std::vector<std::string> classes;

  // For shards: if > 0, a label that is not below it is a UsageError.
  int64_t num_classes = 0;
};

// Both functions below return batches with a float32 input [B, 3, size, size] and an int64 target
// [B]. Both throw UsageError for an option out of range, IoError for what cannot be read and
// FormatError for what is damaged.

// Opens LOCATION/CLASS/NAME.jpg, .jpeg or .png, on a path or on s3://, including folders inside a
// class. The classes are numbered in the order of their names, which Dataset::classes() returns, or
// as ImageOptions::classes says. Give held-out pictures the classes of the training data, since one
// of them may be missing there.
std::shared_ptr<const Dataset> open_image_folder(const std::string& location,
                                                 ImageOptions options = {});

// Opens tar files in WebDataset's layout, on a path or on s3://. A sample is a member KEY.jpg (or
// .jpeg, or .png) with either KEY.cls beside it, which holds a number, or KEY.json, which holds a
// number as "label". As in WebDataset, a key ends at the first dot and the rest is the kind of the
// member, so KEY.mask.png is another kind and is not read. A key with neither a picture nor a .cls
// is not a sample, and neither is a member without a key, such as LICENSE or .DS_Store. Opening
// reads the headers of the members; pictures and labels are read when they are asked for.
std::shared_ptr<const Dataset> open_image_shards(const std::vector<std::string>& tars,
                                                 ImageOptions options = {});

}  // namespace lockstep
