#pragma once

// Pictures with classes: a folder of files, or tar shards. JPEG and PNG.
//
//   auto train = open_image_folder("imagenet/train", {.augment = true});
//   auto shards = open_image_shards({"s3://data/train-000.tar", "s3://data/train-001.tar"});

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/data/dataset.h>

namespace lockstep {

struct ImageOptions {
  int64_t size = 224;    // 1 to 4096: width and height of what the model sees
  bool augment = false;  // true: a random part of 8 % to 100 % of the area, 3:4 to 4:3 in shape,
                         // resized, mirrored or not, as SampleKey::seed says. false: the shorter
                         // side is resized to size * 256 / 224 and the centre cut out
  std::array<float, 3> mean{0.485f, 0.456f, 0.406f};  // of red, green and blue in [0, 1]: what
  std::array<float, 3> std{0.229f, 0.224f, 0.225f};   // comes out is (value - mean) / std
  CorruptSample on_corrupt = CorruptSample::Fatal;    // of a picture that cannot be decoded
  // Of a folder: the name of class i at place i, as classes() of the data that the model is trained
  // on gives them; a folder that is not listed is a UsageError. Empty: as the folder has them.
  std::vector<std::string> classes;
  int64_t num_classes = 0;  // of shards: > 0: a label that is not below it is a UsageError
};

// A batch of either: input float32 [B, 3, size, size], target int64 [B]. Both throw UsageError for
// an option out of range, IoError and FormatError.

// LOCATION/CLASS/NAME.jpg, .jpeg or .png, here or on s3://, folders inside a class included. The
// classes are numbered in the order of their names, which Dataset::classes() gives, or as
// ImageOptions::classes has them: so must those of held-out pictures be, where a class may lack.
std::shared_ptr<const Dataset> open_image_folder(const std::string& location,
                                                 ImageOptions options = {});

// Tar files in WebDataset's layout, here or on s3://: members KEY.jpg (else .jpeg, else .png) and,
// beside it, KEY.cls, a number, or KEY.json with a number as "label". As there, a key ends at the
// first dot and the kind is all behind it: KEY.mask.png is another kind and is not read. A key with
// neither a picture nor a .cls is no sample, nor is a member without a key (LICENSE, .DS_Store).
// Opening reads the headers of the members alone; a picture and its label are read when they are
// asked for.
std::shared_ptr<const Dataset> open_image_shards(const std::vector<std::string>& tars,
                                                 ImageOptions options = {});

}  // namespace lockstep
