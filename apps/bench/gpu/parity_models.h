#pragma once

#include <memory>
#include <string>

#include "bench/ddp/bench_models.h"

namespace lockstep {

// The models of `lockstep bench gpu-parity`, drawn on the CPU with seed 42, without dropout and
// BatchNorm, on batches of 8:
// mlp and mytransformer: those of `bench ddp`, the latter as its transformer.
// convnet: the small network of `recipes/cats.toml`, 8 pictures of 32 x 32.
// bert: lockstep/models/bert.h with 4 layers of width 256, 3000 words and 4 labels; 8 x 64 tokens.
// Throws UsageError for another name.
std::shared_ptr<BenchModel> make_parity_model(const std::string& name);

}  // namespace lockstep
