#pragma once

// Writes a zip that torch.load(weights_only=True), with and without mmap, reads.
//   TorchWriter writer(path, root, tensors, storages);
//   for (const PickledStorage& storage : storages) { writer.begin(); writer.append(...); }
//   writer.finish();

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/archive/zip_writer.h"
#include "formats/torch/pickle_value.h"

namespace lockstep::formats {

class TorchWriter {
 public:
  // `root` refers to `tensors` by number, these to `storages`. Throws UsageError for a value that
  // cannot be written.
  TorchWriter(std::string path, const PickleValue& root, std::span<const PickledTensor> tensors,
              std::vector<PickledStorage> storages);

  // The next storage, in their order: begin, then its bytes in pieces of any size.
  void begin();
  void append(std::span<const std::byte> bytes);

  // The file is there afterwards. Throws UsageError if a storage is missing, too short or too long.
  void finish();

 private:
  void end_storage();

  std::string path_;
  std::vector<PickledStorage> storages_;
  ZipWriter zip_;
  size_t num_begun_ = 0;
  uint64_t written_ = 0;  // of the storage that is open
};

// A state_dict of contiguous tensors, each with a storage of its own: what TorchWriter wants.
struct StateDict {
  PickleValue root;
  std::vector<PickledTensor> tensors;
  std::vector<PickledStorage> storages;

  // Throws UsageError for a shape that has no size.
  void add(const std::string& name, DType dtype, std::vector<int64_t> shape);
};

}  // namespace lockstep::formats
