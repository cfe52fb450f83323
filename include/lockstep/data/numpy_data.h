#pragma once

// Arrays that NumPy saved. Row i of one array is a sample, and row i of the other is its target.
//
// Example:
//   auto pair = lockstep::open_numpy("images.npy", "labels.npy");
//   auto archive = lockstep::open_numpy("both.npz");

#include <memory>
#include <string>

#include <lockstep/data/dataset.h>

namespace lockstep {

// Opens files on a path or on s3://; rows are read when they are asked for. A .npz holds an array
// "input" or "x" and one "target" or "y", stored and not compressed (numpy.savez). Rows have the
// array's own type, except that integers of the target become int64, which losses expect.
//
// Throws UsageError for arrays of different length, IoError for what cannot be read, and
// FormatError for what is damaged or not supported: Fortran order, big-endian numbers, objects,
// text and unsigned types of more than 8 bits.
std::shared_ptr<const Dataset> open_numpy(const std::string& input_npy,
                                          const std::string& target_npy = "");

}  // namespace lockstep
