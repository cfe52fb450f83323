#include "formats/fuzz.h"

#include <lockstep/base/error.h>

#include "formats/npy.h"
#include "formats/safetensors.h"
#include "formats/sharded_index.h"
#include "formats/support.h"
#include "formats/token_file.h"
#include "formats/torch_file.h"
#include "formats/unpickler.h"
#include "formats/weight_file.h"
#include "formats/zip_reader.h"

namespace lockstep::test {

namespace {

// Every tensor of a file that was accepted lies inside it.
void check_inside(const std::vector<TensorInfo>& tensors, uint64_t size) {
  for (const TensorInfo& tensor : tensors) {
    LOCKSTEP_CHECK(tensor.offset_bytes <= size && tensor.size_bytes <= size - tensor.offset_bytes,
                   "{} at {}, {} bytes", shown(tensor.name), tensor.offset_bytes,
                   tensor.size_bytes);
  }
}

}  // namespace

void fuzz_safetensors(std::string_view bytes) {
  try {
    check_inside(read_safetensors(source_of(bytes)).tensors, bytes.size());
  } catch (const FormatError&) {
  }
}

void fuzz_sharded_index(std::string_view bytes) {
  try {
    read_sharded_index(source_of(bytes));
  } catch (const FormatError&) {
  }
}

void fuzz_zip(std::string_view bytes) {
  try {
    const MemorySource source = source_of(bytes);
    const ZipReader reader(source);
    for (const ZipEntry& entry : reader.entries()) {
      reader.verify(entry);
    }
  } catch (const FormatError&) {
  }
}

void fuzz_npy(std::string_view bytes) {
  try {
    check_inside({read_npy(source_of(bytes))}, bytes.size());
  } catch (const FormatError&) {
  }
}

void fuzz_npz(std::string_view bytes) {
  try {
    const MemorySource source = source_of(bytes);
    check_inside(read_npz(ZipReader(source)), bytes.size());
  } catch (const FormatError&) {
  }
}

void fuzz_tokens(std::string_view bytes) {
  try {
    const TokenFile file = read_token_file(source_of(bytes));
    const uint64_t size = file.num_tokens * static_cast<uint64_t>(bits_of(file.dtype)) / 8;
    check_inside({{.offset_bytes = file.offset_bytes, .size_bytes = size}}, bytes.size());
  } catch (const FormatError&) {
  }
}

void fuzz_pickle(std::string_view bytes) {
  try {
    unpickle(bytes, {.file = "x"});
  } catch (const FormatError&) {
  }
}

void fuzz_torch(std::string_view bytes) {
  try {
    const MemorySource source = source_of(bytes);
    check_inside(read_torch(source).tensors, bytes.size());
  } catch (const FormatError&) {
  }
}

void fuzz_weight_file(std::string_view bytes) {
  try {
    const MemorySource source = source_of(bytes);
    const WeightFile file = read_weight_file(source);
    check_inside(file.tensors, bytes.size());
    verify_checksums(source, file);
  } catch (const FormatError&) {
  }
}

}  // namespace lockstep::test
