#pragma once

// Arrays that NumPy saved. Row i of one array is a sample, and row i of the other is its target.
//
// Example:
//   auto pair = lockstep::open_numpy("images.npy", "labels.npy");
//   auto archive = lockstep::open_numpy("both.npz");
//   auto texts = lockstep::open_numpy("texts.npz", "", {.more = {"attention_mask"}});

#include <memory>
#include <string>
#include <vector>

#include <lockstep/data/dataset.h>

namespace lockstep {

struct NumpyOptions {
  // Further arrays of a .npz with a row for each sample. Batches hold them by these names, in their
  // own types.
  std::vector<std::string> more = {};
};

// Opens files on a path or on s3://; rows are read when they are asked for. A .npz holds an array
// "input" or "x" and one "target" or "y", stored and not compressed (numpy.savez). Rows have the
// array's own type, except that integers of the target become int64, which losses expect.
//
// Throws UsageError for arrays of different length and for names without a .npz, IoError for what
// cannot be read, and FormatError for an array that is not there and for what is damaged or not
// supported: Fortran order, big-endian numbers, objects,
// text and unsigned types of more than 8 bits.
std::shared_ptr<const Dataset> open_numpy(const std::string& input_npy,
                                          const std::string& target_npy = "",
                                          const NumpyOptions& options = {});

}  // namespace lockstep
