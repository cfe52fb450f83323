#include "formats/readers.h"

#include <lockstep/base/error.h>

#include "formats/archive/inflate_npz.h"
#include "formats/archive/zip_reader.h"
#include "formats/npy.h"
#include "formats/safetensors.h"
#include "formats/sharded_index.h"
#include "formats/sidecar.h"
#include "formats/support.h"
#include "formats/tensor_reader.h"
#include "formats/token_file.h"
#include "formats/torch/torch_file.h"
#include "formats/torch/unpickler.h"
#include "formats/weight_file.h"

namespace lockstep::test {

namespace {

constexpr uint64_t kMaxReadBytes = 1u << 20;  // of one tensor: strides of 0 unfold

// Every tensor of a file that was accepted lies inside it and can be read.
void check_tensors(const std::vector<formats::TensorInfo>& tensors,
                   const base::ByteSource& source) {
  for (const formats::TensorInfo& tensor : tensors) {
    LOCKSTEP_CHECK(tensor.offset_bytes <= source.size() &&
                       tensor.size_bytes <= source.size() - tensor.offset_bytes,
                   "{} at {}, {} bytes", base::shown(tensor.name), tensor.offset_bytes,
                   tensor.size_bytes);
    if (formats::checked_bytes(tensor.dtype, tensor.shape).value_or(UINT64_MAX) > kMaxReadBytes) {
      continue;
    }
    formats::TensorReader reader(source, tensor);
    uint64_t size = 0;
    for (auto piece = reader.next(); !piece.empty(); piece = reader.next()) {
      size += piece.size();
    }
    LOCKSTEP_CHECK(size == formats::checked_bytes(tensor.dtype, tensor.shape), "{} bytes of {}",
                   size, formats::to_string(tensor.dtype, tensor.shape));
  }
}

void read_safetensors_bytes(std::string_view bytes) {
  const base::MemorySource source = source_of(bytes);
  check_tensors(formats::read_safetensors(source).tensors, source);
}

void read_index(std::string_view bytes) {
  formats::read_sharded_index(source_of(bytes));
}

void read_zip(std::string_view bytes) {
  const base::MemorySource source = source_of(bytes);
  const formats::ZipReader zip(source);
  for (const formats::ZipEntry& entry : zip.entries()) {
    zip.verify(entry);
  }
}

template <formats::TorchFile (*read)(const base::ByteSource&)>
void read_torch_bytes(std::string_view bytes) {
  const base::MemorySource source = source_of(bytes);
  check_tensors(read(source).tensors, source);
}

void read_torch_zip_bytes(std::string_view bytes) {
  read_torch_bytes<formats::read_torch_zip>(bytes);
  const base::MemorySource source = source_of(bytes);
  formats::verify_checksums(source, formats::read_weight_file(source));
}

void read_pickle(std::string_view bytes) {
  formats::unpickle(bytes, {.file = "x"});
}

void read_npy_bytes(std::string_view bytes) {
  const base::MemorySource source = source_of(bytes);
  check_tensors({formats::read_npy(source)}, source);
}

void read_npz_bytes(std::string_view bytes) {
  const auto source = formats::inflate_npz(std::make_unique<base::MemorySource>(source_of(bytes)));
  check_tensors(formats::read_npz(formats::ZipReader(*source)), *source);
  if (formats::detect_weight_format(*source) == formats::WeightFormat::Npz) {
    formats::verify_checksums(*source, formats::read_weight_file(*source));
  }
}

void read_tokens(std::string_view bytes) {
  const base::MemorySource source = source_of(bytes);
  const formats::TokenFile file = formats::read_token_file(source);
  const uint64_t size = file.num_tokens * static_cast<uint64_t>(formats::bits_of(file.dtype)) / 8;
  LOCKSTEP_CHECK(file.offset_bytes + size == bytes.size(), "{} tokens", file.num_tokens);
}

void read_sidecar_bytes(std::string_view bytes) {
  LOCKSTEP_CHECK(formats::read_sidecar(source_of(bytes), "folder/x").size() == 64, "no digest");
}

void read_any(std::string_view bytes) {
  const base::MemorySource source = source_of(bytes);
  const formats::WeightFile file = formats::read_weight_file(source);
  check_tensors(file.tensors, source);
  formats::verify_checksums(source, file);
}

}  // namespace

const std::vector<Reader>& readers() {
  static const std::vector<Reader> all{
      {"safetensors", read_safetensors_bytes, hostile_safetensors, {"small.safetensors"}},
      {"index", read_index, hostile_index, {"small.index.json"}},
      {"zip", read_zip, hostile_zip, {"state_dict.pth", "no_crc.pth", "arrays.npz"}},
      {"torch",
       read_torch_zip_bytes,
       hostile_torch,
       {"state_dict.pth", "checkpoint.pth", "no_crc.pth"}},
      {"pickle", read_pickle, hostile_pickle, {}},
      {"legacy",
       read_torch_bytes<formats::read_torch_legacy>,
       hostile_legacy,
       {"legacy.pth", "legacy_view.pth"}},
      {"tar", read_torch_bytes<formats::read_torch_tar>, hostile_tar, {"tar.pth"}},
      {"npy", read_npy_bytes, hostile_npy, {"array.npy"}},
      {"npz", read_npz_bytes, hostile_npz, {"arrays.npz", "deflated.npz"}},
      {"tokens", read_tokens, hostile_tokens, {"tokens.bin"}},
      {"sidecar", read_sidecar_bytes, hostile_sidecar, {"x.sha256"}},
      {"any",
       read_any,
       hostile_any,
       {"small.safetensors", "state_dict.pth", "legacy.pth", "tar.pth", "array.npy", "arrays.npz"}},
  };
  return all;
}

const Reader& reader(std::string_view name) {
  for (const Reader& one : readers()) {
    if (one.name == name) {
      return one;
    }
  }
  throw UsageError("there is no reader {}", name);
}

std::vector<std::string> seeds(const Reader& reader) {
  std::vector<std::string> files;
  for (const char* name : reader.goldens) {
    files.push_back(golden(name));
  }
  if (reader.name == "pickle") {
    for (const char* name : {"state_dict", "checkpoint"}) {
      const std::string bytes = golden(std::string(name) + ".pth");
      const base::MemorySource source = source_of(bytes);
      const formats::ZipReader zip(source);
      files.push_back(zip.read(*zip.find(std::string(name) + "/data.pkl"), 1u << 20));
    }
  }
  return files;
}

int fuzz(std::string_view reader_name, const uint8_t* data, size_t size) {
  static const Reader& one = reader(reader_name);
  try {
    one.read({reinterpret_cast<const char*>(data), size});
  } catch (const FormatError&) {
  }
  return 0;
}

}  // namespace lockstep::test
