#pragma once

// Arrays that NumPy saved: row i of one is a sample, row i of the other its target.
//
//   auto data = open_numpy("images.npy", "labels.npy");
//   auto data = open_numpy("both.npz");

#include <memory>
#include <string>

#include <lockstep/data/dataset.h>

namespace lockstep {

// Files here or on s3://, read by row when they are asked for. A .npz, in which arrays are stored
// and not compressed (numpy.savez), has an array "input" or "x" and one "target" or "y". Rows are
// of the array's own type, but that whole numbers of the target become int64, as losses want them.
// Throws UsageError for arrays of different length, IoError, and FormatError for what is not read:
// Fortran order, big-endian numbers, objects, text, unsigned types of more than 8 bits.
std::shared_ptr<const Dataset> open_numpy(const std::string& input_npy,
                                          const std::string& target_npy = "");

}  // namespace lockstep
