#pragma once

// A model in two numbers: how many it learns, and one that stands for all its bits.

#include <cstdint>

namespace torch::nn {
class Module;
}

namespace lockstep::models {

// FNV-1a, 64 bits, over the bytes of all parameters and buffers, in the model's order: equal for
// equal bits, and for models that differ in a single bit different but for a chance of 1 in 2^64.
// Against mistakes, not against an attacker.
uint64_t hash_parameters(const torch::nn::Module& module);

// How many numbers a module learns.
int64_t num_parameters(const torch::nn::Module& module);

}  // namespace lockstep::models
