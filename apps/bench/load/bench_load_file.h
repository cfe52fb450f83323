#pragma once

// The file that `lockstep bench load` loads: GPT-2's shapes in fp16, and what it takes to read it
// cold.

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/comm/group.h>

#include "formats/tensor_info.h"

namespace lockstep {

struct BenchWeights {
  std::vector<formats::TensorInfo> tensors;  // in the order in which a model names its parameters
  std::vector<uint32_t> crcs;                // of each one's bytes
};

// Returns GPT-2 large's shapes with as many layers as make the size; below 256 MB they have a tenth
// of the width.
std::vector<formats::TensorInfo> gpt2_shapes(int64_t size_bytes);

// Writes the file, synced, with values that depend on nothing else; returns what is in it.
BenchWeights write_bench_weights(const std::string& path, const std::string& format,
                                 int64_t size_bytes);

// Throws the file's pages out of the page cache and returns which fraction of them stayed.
double drop_from_cache(const std::string& path);

// Reads all of it into the page cache.
void bring_into_cache(const std::string& path);

// Reads once from begin to end and returns the seconds. A direct read goes past the page cache; it
// throws IoError where the file system cannot.
double read_sequentially(const std::string& path, bool direct);

}  // namespace lockstep
