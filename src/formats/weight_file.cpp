#include "formats/weight_file.h"

#include <algorithm>
#include <unordered_set>

#include <lockstep/base/error.h>

#include "formats/archive/crc32.h"
#include "formats/archive/zip_format.h"
#include "formats/little_endian.h"
#include "formats/npy.h"
#include "formats/safetensors.h"
#include "formats/torch/torch_file.h"

namespace lockstep::formats {

namespace {

using namespace std::string_view_literals;

constexpr uint64_t kStartBytes = 512;
constexpr size_t kSafetensorsLength = 8;
constexpr size_t kTarName = 257;
constexpr std::string_view kSpaces = " \t\r\n";

bool starts_as_safetensors(std::string_view start) {
  if (start.size() <= kSafetensorsLength ||
      number_at<uint64_t>(start, 0) > SafetensorsLimits{}.header_bytes) {
    return false;
  }
  const size_t first = start.find_first_not_of(kSpaces, kSafetensorsLength);
  return first != start.npos && start[first] == '{';
}

// numpy writes arrays and nothing else, torch none.
bool starts_as_npz(std::string_view start) {
  if (start.size() < zip::kLocalBytes) {
    return false;
  }
  return start.substr(zip::kLocalBytes, number_at<uint16_t>(start, 26)).ends_with(".npy");
}

void add_torch(const TorchFile& torch, WeightFile& file) {
  file.tensors = torch.tensors;
  for (const TorchStorage& storage : torch.storages) {
    if (storage.crc) {
      file.checksums.push_back({.record = storage.key,
                                .offset_bytes = storage.offset_bytes,
                                .size_bytes = storage.size_bytes,
                                .crc = *storage.crc});
    }
  }
}

void add_npz(const ZipReader& zip, WeightFile& file) {
  file.tensors = read_npz(zip);
  for (const ZipEntry& entry : zip.entries()) {
    if (zip.has_checksums()) {
      file.checksums.push_back({.record = entry.name,
                                .offset_bytes = entry.data_offset,
                                .size_bytes = entry.size_bytes,
                                .crc = entry.crc});
    }
  }
}

std::string tensors_in(const WeightFile& file, const WeightChecksum& range) {
  std::string names;
  for (const TensorInfo& tensor : file.tensors) {
    if (tensor.size_bytes != 0 && tensor.offset_bytes >= range.offset_bytes &&
        tensor.offset_bytes - range.offset_bytes < range.size_bytes && names.size() < 200) {
      names += (names.empty() ? "" : ", ") + base::shown(tensor.name);
    }
  }
  return names;
}

}  // namespace

std::string_view name_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::Safetensors:
      return "safetensors";
    case WeightFormat::TorchZip:
      return "torch zip";
    case WeightFormat::TorchLegacy:
      return "torch legacy";
    case WeightFormat::TorchTar:
      return "torch tar";
    case WeightFormat::Npy:
      return "npy";
    case WeightFormat::Npz:
      return "npz";
  }
  return "";
}

std::optional<WeightFormat> detect_weight_format(const base::ByteSource& source) {
  const std::string text = source.read_text(0, std::min(source.size(), kStartBytes));
  const std::string_view start = text;
  if (start.starts_with(zip::kLocalSignature)) {
    return starts_as_npz(start) ? WeightFormat::Npz : WeightFormat::TorchZip;
  }
  if (start.starts_with("\x80\x02\x8a\x0a"sv)) {
    return WeightFormat::TorchLegacy;
  }
  if (start.substr(std::min(start.size(), kTarName)).starts_with("ustar")) {
    return WeightFormat::TorchTar;
  }
  if (start.starts_with("\x93NUMPY"sv)) {
    return WeightFormat::Npy;
  }
  return starts_as_safetensors(start) ? std::optional(WeightFormat::Safetensors) : std::nullopt;
}

WeightFile read_weight_file(const base::ByteSource& source) {
  const std::optional<WeightFormat> format = detect_weight_format(source);
  if (!format) {
    throw FormatError(
        "{}: its first bytes are those of no known file of weights: safetensors, torch.save (zip, "
        "legacy, tar), .npy or .npz",
        source.name());
  }
  WeightFile file{.format = *format};
  switch (*format) {
    case WeightFormat::Safetensors: {
      SafetensorsFile safetensors = read_safetensors(source);
      file.tensors = std::move(safetensors.tensors);
      file.metadata = std::move(safetensors.metadata);
      break;
    }
    case WeightFormat::TorchZip:
    case WeightFormat::TorchLegacy:
    case WeightFormat::TorchTar:
      add_torch(read_torch(source), file);
      break;
    case WeightFormat::Npy:
      file.tensors = {read_npy(source)};
      break;
    case WeightFormat::Npz:
      add_npz(ZipReader(source), file);
      break;
  }
  std::sort(file.checksums.begin(), file.checksums.end(),
            [](const auto& a, const auto& b) { return a.offset_bytes < b.offset_bytes; });
  return file;
}

void verify_checksums(const base::ByteSource& source, const WeightFile& file) {
  std::unordered_set<uint64_t> done;  // offsets
  for (const WeightChecksum& range : file.checksums) {
    const uint32_t crc = crc32_of(source, range.offset_bytes, range.size_bytes);
    if (crc != range.crc) {
      throw FormatError(
          "{}: record {} (offset {}, {} bytes; tensor {}) has the CRC-32 {:08x}, and {:08x} was "
          "written: it is damaged; copy the file again",
          source.name(), base::shown(range.record), range.offset_bytes, range.size_bytes,
          tensors_in(file, range), crc, range.crc);
    }
    done.insert(range.offset_bytes);
  }
  if (file.format != WeightFormat::TorchZip) {
    return;
  }
  const ZipReader zip(source);
  for (const ZipEntry& entry : zip.entries()) {
    if (!done.contains(entry.data_offset)) {
      zip.verify(entry);
    }
  }
}

}  // namespace lockstep::formats
