#pragma once

// Writes tensors into a file that other programs read.
//
// Example:
//   lockstep::save_weights("model.safetensors", tensors, {{"format", "pt"}});
//   lockstep::save_weights("model.pth", tensors);  // torch.load("model.pth", weights_only=True)
//
// The file is written beside its place, synced and renamed, so it appears whole or not at all. The
// call is not collective: one rank makes it, or each with a path of its own.

#include <map>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>

namespace lockstep {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;  // dense, on the CPU or a GPU; it is written as if it were contiguous
};

// Writes the tensors in the format that the end of `path` names: ".safetensors", or ".pth", ".pt"
// or ".bin" for what torch.save writes, with a CRC-32 of every tensor. Every tensor gets bytes of
// its own, so give only the first of tied ones. The tensors must not change during the call. The
// bytes do not depend on the device; a tensor of a GPU is written as the caller's current stream
// leaves it.
//
// Throws UsageError for another end of the path, for a name that is empty or occurs twice, for a
// type that the format does not have and for metadata in a format other than safetensors; and
// IoError if the file cannot be written. An older file at `path` is left as it was.
void save_weights(const std::string& path, std::span<const NamedTensor> tensors,
                  const std::map<std::string, std::string>& metadata = {});

}  // namespace lockstep
