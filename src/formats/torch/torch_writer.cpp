#include "formats/torch/torch_writer.h"

#include <lockstep/base/error.h>

#include "formats/tensor_info.h"
#include "formats/torch/pickler.h"

namespace lockstep::formats {

namespace {

// torch takes any root. Without the record .format_version it asks the directory for offsets,
// which is right: with it, it would compute them as if miniz had written the file.
constexpr const char* kRoot = "archive/";

}  // namespace

TorchWriter::TorchWriter(std::string path, const PickleValue& root,
                         std::span<const PickledTensor> tensors,
                         std::vector<PickledStorage> storages)
    : path_(path), storages_(std::move(storages)), zip_(std::move(path)) {
  zip_.add(std::string(kRoot) + "data.pkl", pickle(root, tensors, storages_));
  zip_.add(std::string(kRoot) + "byteorder", "little");
}

void TorchWriter::begin() {
  end_storage();
  if (num_begun_ == storages_.size()) {
    throw UsageError("cannot write {}: more than its {} storages", path_, storages_.size());
  }
  zip_.begin(std::string(kRoot) + "data/" + storages_[num_begun_].key);
  ++num_begun_;
}

void TorchWriter::append(std::span<const std::byte> bytes) {
  LOCKSTEP_CHECK(num_begun_ > 0, "append before begin");
  zip_.append(bytes);
  written_ += bytes.size();
}

void TorchWriter::end_storage() {
  if (num_begun_ == 0) {
    return;
  }
  const PickledStorage& storage = storages_[num_begun_ - 1];
  if (written_ != storage.size_bytes) {
    throw UsageError("cannot write {}: storage {} has {} bytes, and {} were given", path_,
                     base::shown(storage.key), storage.size_bytes, written_);
  }
  zip_.end();
  written_ = 0;
}

void TorchWriter::finish() {
  end_storage();
  if (num_begun_ != storages_.size()) {
    throw UsageError("cannot write {}: {} of its {} storages were given", path_, num_begun_,
                     storages_.size());
  }
  zip_.add(std::string(kRoot) + "version", "3\n");
  zip_.finish();
}

void StateDict::add(const std::string& name, DType dtype, std::vector<int64_t> shape) {
  const auto bytes = checked_bytes(dtype, shape);
  if (!bytes) {
    throw UsageError("tensor {}: {} has no size", base::shown(name), to_string(dtype, shape));
  }
  std::vector<int64_t> strides = contiguous_strides(shape);
  root.kind = PickleValue::Kind::Dict;
  root.items.push_back(PickleValue::of(name));
  root.items.push_back(PickleValue::of_tensor(tensors.size()));
  tensors.push_back({.storage = storages.size(),
                     .dtype = dtype,
                     .shape = std::move(shape),
                     .strides = std::move(strides)});
  storages.push_back({.key = std::to_string(storages.size()), .size_bytes = *bytes});
}

}  // namespace lockstep::formats
