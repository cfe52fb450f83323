#pragma once

// Tensors into a file that others read.
//
//   lockstep::save_weights("model.safetensors", tensors, {{"format", "pt"}});
//   lockstep::save_weights("model.pth", tensors);       // torch.load("model.pth",
//   weights_only=True)
//
// The file is written beside its place, synced and renamed: it appears whole or not at all. One
// rank calls this, or each with a path of its own.

#include <map>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>

namespace lockstep {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;  // of the CPU, dense; it is written as if it were contiguous
};

// The end of `path` says what is written: ".safetensors", or ".pth", ".pt" or ".bin" for what
// torch.save writes, with a CRC-32 of every tensor. Every tensor gets bytes of its own: of tied
// ones give only the first. Throws UsageError for another end, a name that is empty or taken, a
// type that the format lacks and for metadata in what is not safetensors, and IoError.
void save_weights(const std::string& path, std::span<const NamedTensor> tensors,
                  const std::map<std::string, std::string>& metadata = {});

}  // namespace lockstep
