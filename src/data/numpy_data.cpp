#include <algorithm>
#include <array>
#include <optional>

#include <ATen/ops/empty.h>

#include <lockstep/base/error.h>
#include <lockstep/data/numpy_data.h>

#include "base/text/text.h"
#include "data/sample_keys.h"
#include "formats/npy.h"
#include "storage/parallel_read.h"
#include "storage/storage.h"

namespace lockstep {

namespace {

// Those that both NumPy and libtorch can compute with.
std::optional<at::ScalarType> scalar_type_of(formats::DType dtype) {
  switch (dtype) {
    case formats::DType::Bool:
      return at::kBool;
    case formats::DType::U8:
      return at::kByte;
    case formats::DType::I8:
      return at::kChar;
    case formats::DType::I16:
      return at::kShort;
    case formats::DType::I32:
      return at::kInt;
    case formats::DType::I64:
      return at::kLong;
    case formats::DType::F16:
      return at::kHalf;
    case formats::DType::F32:
      return at::kFloat;
    case formats::DType::F64:
      return at::kDouble;
    default:
      return std::nullopt;
  }
}

class Rows {
 public:
  Rows(std::shared_ptr<const base::ByteSource> source, formats::TensorInfo info)
      : source_(std::move(source)), info_(std::move(info)) {
    const auto type = scalar_type_of(info_.dtype);
    if (!type || !info_.strides.empty() || info_.shape.empty() || info_.shape[0] == 0) {
      throw FormatError(
          "{}: array {} is {}{}; rows of bool, uint8, int8 to int64 or float16 to float64 in C "
          "order are read",
          source_->name(), base::shown(info_.name), formats::to_string(info_.dtype, info_.shape),
          info_.strides.empty() ? "" : " in Fortran order");
    }
    type_ = *type;
    row_bytes_ = info_.size_bytes / static_cast<uint64_t>(info_.shape[0]);
  }

  int64_t size() const { return info_.shape[0]; }

  at::Tensor gather(std::span<const SampleKey> samples, bool is_remote) const {
    std::vector<int64_t> shape = info_.shape;
    shape[0] = static_cast<int64_t>(samples.size());
    const at::Tensor rows = at::empty(shape, type_);
    auto* const to = static_cast<std::byte*>(rows.mutable_data_ptr());
    storage::for_each_parallel(
        samples.size(), is_remote ? storage::kRemoteReads : 1, [&](size_t i) {
          const auto row = static_cast<uint64_t>(samples[i].index);
          source_->read_at(info_.offset_bytes + row * row_bytes_,
                           {to + i * row_bytes_, static_cast<size_t>(row_bytes_)});
        });
    return rows;
  }

 private:
  std::shared_ptr<const base::ByteSource> source_;
  formats::TensorInfo info_;
  at::ScalarType type_ = at::kFloat;
  uint64_t row_bytes_ = 0;
};

// Arrays of an archive besides input and target.
using NamedRows = std::vector<std::pair<std::string, Rows>>;

class NumpyDataset : public Dataset {
 public:
  NumpyDataset(Rows input, Rows target, NamedRows more, bool is_remote)
      : input_(std::move(input)),
        target_(std::move(target)),
        more_(std::move(more)),
        is_remote_(is_remote) {
    if (input_.size() != target_.size()) {
      throw UsageError("numpy: {} rows of input and {} of target; they must be equally many",
                       input_.size(), target_.size());
    }
    for (const auto& [name, rows] : more_) {
      if (rows.size() != input_.size()) {
        throw UsageError("numpy: {} rows of input and {} of {}; they must be equally many",
                         input_.size(), rows.size(), base::shown(name));
      }
    }
  }

  int64_t size() const override { return input_.size(); }

  Batch batch(std::span<const SampleKey> samples) const override {
    data::check_samples(samples, size());
    at::Tensor target = target_.gather(samples, is_remote_);
    if (at::isIntegralType(target.scalar_type(), /*includeBool=*/true)) {
      target = target.to(at::kLong);
    }
    Batch batch{.input = input_.gather(samples, is_remote_), .target = target};
    for (const auto& [name, rows] : more_) {
      batch.set(name, rows.gather(samples, is_remote_));
    }
    return batch;
  }

 private:
  const Rows input_;
  const Rows target_;
  const NamedRows more_;
  const bool is_remote_;
};

NamedRows find_more(const std::shared_ptr<const base::ByteSource>& source,
                    const std::vector<formats::TensorInfo>& arrays,
                    const std::vector<std::string>& names) {
  NamedRows more;
  for (const std::string& name : names) {
    const auto found = std::find_if(arrays.begin(), arrays.end(),
                                    [&](const auto& array) { return array.name == name; });
    if (found == arrays.end()) {
      std::vector<std::string> known;
      for (const formats::TensorInfo& array : arrays) {
        known.push_back(array.name);
      }
      throw FormatError("{}: it has no array \"{}\"{}", source->name(), name,
                        base::did_you_mean(name, known));
    }
    more.emplace_back(name, Rows(source, *found));
  }
  return more;
}

Rows find_array(const std::shared_ptr<const base::ByteSource>& source,
                const std::vector<formats::TensorInfo>& arrays,
                const std::array<const char*, 2>& names) {
  for (const formats::TensorInfo& array : arrays) {
    if (array.name == names[0] || array.name == names[1]) {
      return {source, array};
    }
  }
  throw FormatError(
      "{}: it has no array \"{}\" or \"{}\"; numpy.savez(FILE, input=..., target=...)",
      source->name(), names[0], names[1]);
}

}  // namespace

std::shared_ptr<const Dataset> open_numpy(const std::string& input_npy,
                                          const std::string& target_npy,
                                          const NumpyOptions& options) {
  const std::shared_ptr<const base::ByteSource> input = storage::open_source(input_npy);
  const bool is_far =
      storage::is_remote(input_npy) || (!target_npy.empty() && storage::is_remote(target_npy));
  if (!target_npy.empty()) {
    if (!options.more.empty()) {
      throw UsageError(
          "numpy: the array \"{}\" is asked for, but {} and {} have no names; save all arrays in "
          "one .npz (numpy.savez) and name that alone",
          options.more.front(), input_npy, target_npy);
    }
    const std::shared_ptr<const base::ByteSource> target = storage::open_source(target_npy);
    return std::make_shared<NumpyDataset>(Rows(input, formats::read_npy(*input)),
                                          Rows(target, formats::read_npy(*target)), NamedRows(),
                                          is_far);
  }
  if (!input_npy.ends_with(".npz")) {
    throw UsageError("numpy: {} has no targets; name a second file, or a .npz with both",
                     input_npy);
  }
  const formats::ZipReader zip(*input);
  const std::vector<formats::TensorInfo> arrays = formats::read_npz(zip);
  return std::make_shared<NumpyDataset>(find_array(input, arrays, {"input", "x"}),
                                        find_array(input, arrays, {"target", "y"}),
                                        find_more(input, arrays, options.more), is_far);
}

}  // namespace lockstep
