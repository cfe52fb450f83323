#pragma once

// safetensors: u64 N, N bytes of JSON, the tensors one after another. No checksum in the format: a
// flipped bit among the weights cannot be seen.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/atomic_file.h"
#include "base/byte_source.h"
#include "formats/tensor_info.h"

namespace lockstep::formats {

struct SafetensorsFile {
  std::vector<TensorInfo> tensors;  // in the order of their bytes, without a hole between them
  std::map<std::string, std::string> metadata;
  uint64_t data_offset = 0;  // where the first tensor begins
};

struct SafetensorsLimits {
  uint64_t header_bytes = 100'000'000;  // the reference reader's own limit
  size_t num_tensors = 100'000;         // JSON of 100 MB could name millions
};

// Reads the header and checks all of it: every tensor lies in the file, none overlaps another, and
// every byte belongs to one. Throws FormatError, naming file, tensor and offset, and IoError.
SafetensorsFile read_safetensors(const base::ByteSource& source,
                                 const SafetensorsLimits& limits = {});

// What stands before the tensors, which follow one another in this order: a multiple of 4096 bytes.
// Throws UsageError for a name or a value that is not UTF-8; `path` is for the message.
std::string safetensors_head(const std::string& path, const std::vector<TensorInfo>& tensors,
                             const std::map<std::string, std::string>& metadata = {});

// Writes a file whose data begins at a multiple of 4096, so that it can be read past the page
// cache. Tensors are sorted by falling size of element, then name, as the reference writer does.
//   SafetensorsWriter writer(path, tensors, {{"format", "pt"}});
//   for (const TensorInfo& tensor : writer.tensors()) writer.append(bytes_of(tensor.name));
//   writer.finish();
class SafetensorsWriter {
 public:
  // Of each tensor name, dtype and shape count. Throws UsageError for a name that is empty, taken
  // or "__metadata__", and for a type that safetensors lacks.
  SafetensorsWriter(std::string path, std::vector<TensorInfo> tensors,
                    const std::map<std::string, std::string>& metadata = {});

  // In the order in which append() wants their bytes, with the offsets they get.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }

  // Pieces of any size.
  void append(std::span<const std::byte> bytes) { file_.append(bytes); }

  // The file is there afterwards. Throws UsageError if the bytes are too few or too many.
  void finish();

 private:
  std::string path_;
  std::vector<TensorInfo> tensors_;
  uint64_t end_ = 0;
  base::AtomicFile file_;
};

}  // namespace lockstep::formats
