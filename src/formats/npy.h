#pragma once

// NumPy's arrays: .npy is one, .npz a zip of them.

#include <vector>

#include "base/byte_source.h"
#include "formats/tensor_info.h"
#include "formats/zip_reader.h"

namespace lockstep {

// Little-endian numbers and bools, in C or Fortran order (strides). Objects (they are pickles),
// records, text and big-endian numbers are refused. The name is empty. Throws FormatError.
TensorInfo read_npy(const ByteSource& source);

// Every array of the archive, named without ".npy". Not deflated (numpy.savez, not
// savez_compressed). Throws FormatError.
std::vector<TensorInfo> read_npz(const ZipReader& zip);

}  // namespace lockstep
