#include <cstring>

#include <ATen/ops/empty.h>

#include <lockstep/data/dataset.h>

#include "data/columns.h"
#include "data/sample_keys.h"

namespace lockstep {

namespace {

// Rows by hand: index_select would start libtorch's own threads under each worker of a Loader.
at::Tensor gather_rows(const at::Tensor& from, std::span<const SampleKey> samples) {
  std::vector<int64_t> shape = from.sizes().vec();
  const auto row_bytes = shape[0] == 0 ? 0 : from.nbytes() / static_cast<size_t>(shape[0]);
  shape[0] = static_cast<int64_t>(samples.size());
  at::Tensor rows = at::empty(shape, from.options());
  auto* to = static_cast<std::byte*>(rows.data_ptr());
  const auto* data = static_cast<const std::byte*>(from.const_data_ptr());
  for (const SampleKey& sample : samples) {
    std::memcpy(to, data + static_cast<size_t>(sample.index) * row_bytes, row_bytes);
    to += row_bytes;
  }
  return rows;
}

class MemoryDataset : public Dataset {
 public:
  explicit MemoryDataset(Batch columns) : columns_(std::move(columns)) {}

  int64_t size() const override { return columns_.num_samples(); }

  Batch batch(std::span<const SampleKey> samples) const override {
    data::check_samples(samples, size());
    return data::gathered(columns_,
                          [&](const at::Tensor& column) { return gather_rows(column, samples); });
  }

 private:
  Batch columns_;
};

}  // namespace

std::shared_ptr<const Dataset> make_dataset(TensorDataset data) {
  const Batch columns = data::checked_columns(data, "dataset");
  return std::make_shared<MemoryDataset>(
      columns.map([](const at::Tensor& column) { return column.detach().cpu().contiguous(); }));
}

}  // namespace lockstep
