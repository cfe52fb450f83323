#pragma once

// NumPy's arrays: .npy is one, .npz a zip of them.

#include <span>
#include <string>
#include <vector>

#include "base/atomic_file.h"
#include "base/byte_source.h"
#include "formats/archive/zip_reader.h"
#include "formats/tensor_info.h"

namespace lockstep::formats {

// Little-endian numbers and bools, in C or Fortran order (strides). Objects (they are pickles),
// records, text and big-endian numbers are refused. The name is empty. Throws FormatError.
TensorInfo read_npy(const base::ByteSource& source);

// The same inside a larger file, for which only the header's bytes need be there.
struct NpyPlace {
  std::string name;
  uint64_t offset_bytes = 0;
  uint64_t size_bytes = 0;  // header and array
};
TensorInfo read_npy(const base::ByteSource& source, const NpyPlace& place);

// Every array of the archive, named without ".npy". For deflated
// archives see inflate_npz.h. Throws FormatError.
std::vector<TensorInfo> read_npz(const ZipReader& zip);

// Writes a .npy of version 1 that numpy.load reads, in C order.
class NpyWriter {
 public:
  // Throws UsageError for a type that NumPy lacks (BF16, the smaller floats) or an impossible
  // shape.
  NpyWriter(std::string path, DType dtype, std::span<const int64_t> shape);

  // Pieces of any size.
  void append(std::span<const std::byte> bytes) { file_.append(bytes); }

  // The file is there afterwards. Throws UsageError if the bytes are too few or too many.
  void finish();

 private:
  std::string path_;
  uint64_t end_ = 0;
  base::AtomicFile file_;
};

}  // namespace lockstep::formats
