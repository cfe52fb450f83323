#pragma once

// Any file of weights, recognised by its first bytes: for those who want tensors, wherever they are
// from.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/byte_source.h"
#include "formats/tensor_info.h"

namespace lockstep::formats {

enum class WeightFormat : uint8_t { Safetensors, TorchZip, TorchLegacy, TorchTar, Npy, Npz };

// "safetensors", "torch zip", ...
std::string_view name_of(WeightFormat format);

// A range of the file and the CRC-32 that was written for it. It can only be compared when the
// whole range has been read.
struct WeightChecksum {
  std::string record;  // for messages: the storage's key, the array's name
  uint64_t offset_bytes = 0;
  uint64_t size_bytes = 0;
  uint32_t crc = 0;
};

struct WeightFile {
  WeightFormat format = WeightFormat::Safetensors;
  std::vector<TensorInfo> tensors;
  std::map<std::string, std::string> metadata;  // of safetensors
  std::vector<WeightChecksum> checksums;        // by rising offset; empty: the file carries none
};

// Nothing: the first bytes are those of no known format.
std::optional<WeightFormat> detect_weight_format(const base::ByteSource& source);

// Reads and checks everything but the weights. Throws FormatError and IoError as the readers of the
// formats do, and FormatError for a file of none of them.
WeightFile read_weight_file(const base::ByteSource& source);

// Reads every record of a zip, also those that hold no weights, and compares its CRC-32; does
// nothing for a file without checksums. Throws FormatError with the record, its offset and the
// tensors in it.
void verify_checksums(const base::ByteSource& source, const WeightFile& file);

}  // namespace lockstep::formats
