#include "weights/plan.h"

#include <algorithm>
#include <tuple>

#include <fmt/ranges.h>

#include <lockstep/base/error.h>

#include "base/hash.h"
#include "base/round.h"
#include "base/text/text.h"
#include "device/memory.h"

namespace lockstep::weights {

namespace {

// Reading what lies between two tensors costs less than another request.
constexpr uint64_t kGapBytes = 64 << 10;

[[noreturn]] void refuse_name(const WeightCatalog& catalog, const std::string& name) {
  std::vector<std::string> names;
  for (const WeightInfo& info : catalog.infos) {
    names.push_back(info.name);
  }
  const std::string near = base::nearest(name, names);
  throw UsageError("{}: no tensor {} among its {}{}", catalog.location, base::shown(name),
                   names.size(),
                   near.empty() ? "" : fmt::format("; is {} meant?", base::shown(near)));
}

void check_target(const WeightCatalog& catalog, const WeightTarget& target, size_t which) {
  const CatalogTensor& found = catalog.tensors[which];
  const std::string& file = catalog.files[found.file].location;
  const at::Tensor& tensor = target.tensor;
  if (!device::is_dense(tensor) || !tensor.is_non_overlapping_and_dense()) {
    throw UsageError("{}: tensor {} can be loaded only into a dense tensor of the CPU or a GPU",
                     file, base::shown(target.name));
  }
  if (tensor.sizes() != at::IntArrayRef(found.info.shape)) {
    throw UsageError("{}: tensor {} is {} and the one to be filled has the shape [{}]", file,
                     base::shown(target.name),
                     formats::to_string(found.info.dtype, found.info.shape),
                     fmt::join(tensor.sizes(), ", "));
  }
  if (catalog.infos[which].dtype == at::ScalarType::Undefined) {
    throw UsageError("{}: tensor {} is {}, a type that libtorch lacks", file,
                     base::shown(target.name),
                     formats::to_string(found.info.dtype, found.info.shape));
  }
}

void add_ranges(LoadPlan& plan, const WeightCatalog& catalog) {
  for (const PlannedTensor& planned : plan.tensors) {
    const formats::TensorInfo& info = planned.tensor->info;
    const size_t file = planned.tensor->file;
    const uint64_t begin = info.offset_bytes / kPageBytes * kPageBytes;
    const uint64_t end = std::min(base::rounded_up(info.offset_bytes + info.size_bytes, kPageBytes),
                                  catalog.files[file].size_bytes);
    if (!plan.ranges.empty() && plan.ranges.back().file == file &&
        begin <= plan.ranges.back().end + kGapBytes) {
      plan.ranges.back().end = std::max(plan.ranges.back().end, end);
    } else {
      plan.ranges.push_back({.file = file, .begin = begin, .end = end});
    }
  }
  for (ReadRange& range : plan.ranges) {
    range.position = plan.stream_bytes;
    plan.stream_bytes += base::rounded_up(range.end - range.begin, kPageBytes);
    plan.read_bytes += range.end - range.begin;
  }
}

const ReadRange& range_at(const LoadPlan& plan, size_t file, uint64_t offset) {
  const auto after = std::upper_bound(
      plan.ranges.begin(), plan.ranges.end(), offset, [&](uint64_t value, const ReadRange& range) {
        return file < range.file || (file == range.file && value < range.begin);
      });
  return *std::prev(after);
}

// The record that holds the tensor, unless there is none or a part of it is not read.
const formats::WeightChecksum* record_of(const LoadPlan& plan, const WeightCatalog& catalog,
                                         const CatalogTensor& tensor) {
  const auto& sums = catalog.files[tensor.file].checksums;
  const auto after = std::upper_bound(
      sums.begin(), sums.end(), tensor.info.offset_bytes,
      [](uint64_t value, const formats::WeightChecksum& sum) { return value < sum.offset_bytes; });
  if (after == sums.begin()) {
    return nullptr;
  }
  const formats::WeightChecksum& sum = *std::prev(after);
  const ReadRange& range = range_at(plan, tensor.file, tensor.info.offset_bytes);
  const uint64_t end = sum.offset_bytes + sum.size_bytes;
  const bool holds = tensor.info.offset_bytes + tensor.info.size_bytes <= end;
  return holds && range.begin <= sum.offset_bytes && end <= range.end ? &sum : nullptr;
}

void add_records(LoadPlan& plan, const WeightCatalog& catalog) {
  plan.is_verifiable = true;
  for (const PlannedTensor& planned : plan.tensors) {
    const formats::WeightChecksum* sum = record_of(plan, catalog, *planned.tensor);
    if (sum == nullptr) {
      plan.is_verifiable = false;
      continue;
    }
    if (!plan.records.empty() && plan.records.back().sum == sum) {
      continue;
    }
    const size_t file = planned.tensor->file;
    const ReadRange& range = range_at(plan, file, sum->offset_bytes);
    plan.records.push_back({.file = &catalog.files[file],
                            .sum = sum,
                            .tensor = planned.tensor,
                            .position = range.position + (sum->offset_bytes - range.begin)});
  }
}

}  // namespace

uint64_t LoadPlan::fingerprint() const {
  base::Fnv1a hash;
  for (const ReadRange& range : ranges) {
    hash.add(uint64_t{range.file});
    hash.add(range.begin);
    hash.add(range.end);
  }
  for (const PlannedRecord& record : records) {
    hash.add(record.position);
    hash.add(record.sum->size_bytes);
  }
  return hash.value();
}

LoadPlan make_plan(const WeightCatalog& catalog, std::span<const WeightTarget> targets) {
  LoadPlan plan;
  for (size_t i = 0; i < targets.size(); ++i) {
    const auto found = catalog.index.find(targets[i].name);
    if (found == catalog.index.end()) {
      refuse_name(catalog, targets[i].name);
    }
    check_target(catalog, targets[i], found->second);
    const CatalogTensor& tensor = catalog.tensors[found->second];
    if (catalog.infos[found->second].bytes > 0) {
      plan.tensors.push_back({.target = i, .tensor = &tensor});
    }
  }
  std::sort(plan.tensors.begin(), plan.tensors.end(),
            [](const PlannedTensor& a, const PlannedTensor& b) {
              const auto key = [](const PlannedTensor& planned) {
                return std::tuple(planned.tensor->file, planned.tensor->info.offset_bytes,
                                  planned.target);
              };
              return key(a) < key(b);
            });
  add_ranges(plan, catalog);
  for (PlannedTensor& planned : plan.tensors) {
    const uint64_t offset = planned.tensor->info.offset_bytes;
    const ReadRange& range = range_at(plan, planned.tensor->file, offset);
    planned.position = range.position + (offset - range.begin);
  }
  add_records(plan, catalog);
  return plan;
}

std::vector<ReadPart> parts_of(const LoadPlan& plan, uint64_t position, uint64_t bytes) {
  std::vector<ReadPart> parts;
  auto range = std::upper_bound(
      plan.ranges.begin(), plan.ranges.end(), position,
      [](uint64_t value, const ReadRange& other) { return value < other.position; });
  range = range == plan.ranges.begin() ? range : std::prev(range);
  for (; range != plan.ranges.end() && range->position < position + bytes; ++range) {
    const uint64_t end = std::min(range->position + (range->end - range->begin), position + bytes);
    const uint64_t begin = std::max(range->position, position);
    if (begin < end) {
      parts.push_back({.file = range->file,
                       .offset = range->begin + (begin - range->position),
                       .bytes = end - begin,
                       .at = begin - position});
    }
  }
  return parts;
}

}  // namespace lockstep::weights
