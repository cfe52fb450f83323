#pragma once

// What torch.save wrote: a tree of values, and the tensors in it as places in the file. Nothing is
// executed, no tensor is read.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/byte_source.h"
#include "formats/tensor_info.h"
#include "formats/torch/pickle_value.h"

namespace lockstep::formats {

inline constexpr uint64_t kMaxPickleBytes = 64u << 20;  // far above what any model needs

struct TorchStorage {
  std::string key;
  uint64_t offset_bytes = 0;
  uint64_t size_bytes = 0;
  std::optional<uint32_t> crc;  // none: the file carries no checksum
};

struct TorchFile {
  PickleValue root;  // its tensors are numbers into `tensors`
  std::vector<TensorInfo>
      tensors;  // named by the keys on the way to them: "optimizer.state.0.step"
  std::vector<TorchStorage> storages;
  bool has_checksums = false;
};

// A zip (torch >= 1.6). Throws FormatError for what is damaged or hostile, holds anything but plain
// values and tensors, or was saved on a big-endian machine, and IoError.
TorchFile read_torch_zip(const base::ByteSource& source);

// The stream of pickles that torch wrote before 1.6, and still does on request; most weights of
// those years are such files. It has no checksum. Throws as above, also for bytes after the last
// storage.
TorchFile read_torch_legacy(const base::ByteSource& source);

// The tar that torch wrote before 0.1.10, as torchvision's oldest weights are. It has no checksum
// of its data. Throws as above.
TorchFile read_torch_tar(const base::ByteSource& source);

// Any of them, by the first bytes.
TorchFile read_torch(const base::ByteSource& source);

// For the readers of all containers: gives the tensors of `pickle` names and places. Throws
// FormatError if two have the same name or if they unfold (by strides of 0) into far more than the
// file holds.
TorchFile place_tensors(const base::ByteSource& source, Pickle pickle,
                        std::vector<TorchStorage> storages);

// For the readers of old files, which say of what machine they are. Throws FormatError.
void check_little_endian(const base::ByteSource& source, const PickleValue& system);

}  // namespace lockstep::formats
