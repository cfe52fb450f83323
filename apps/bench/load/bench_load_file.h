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

// GPT-2 large's shapes, with as many layers as make the size; of a tenth of the width below 256 MB.
std::vector<formats::TensorInfo> gpt2_shapes(int64_t size_bytes);

// Writes the file, synced, with values that depend on nothing else; returns what is in it.
BenchWeights write_bench_weights(const std::string& path, const std::string& format,
                                 int64_t size_bytes);

// Throws the file's pages out of the page cache and returns which fraction of them stayed.
double drop_from_cache(const std::string& path);

// Reads all of it into the page cache.
void bring_into_cache(const std::string& path);

// One read from begin to end, in seconds. Direct: past the page cache; throws IoError where the
// file system cannot.
double read_sequentially(const std::string& path, bool direct);

}  // namespace lockstep
