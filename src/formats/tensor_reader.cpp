#include "formats/tensor_reader.h"

#include <algorithm>
#include <cstring>

namespace lockstep::formats {

namespace {

// Read at once, to take elements out of; pieces that lie further apart are read run by run.
constexpr uint64_t kMaxSpanBytes = 32u << 20;

}  // namespace

TensorReader::TensorReader(const base::ByteSource& source, const TensorInfo& tensor)
    : source_(source),
      tensor_(tensor),
      element_bytes_(static_cast<uint64_t>(bits_of(tensor.dtype)) / 8),
      num_elements_(*checked_elements(tensor.shape)) {
  // The first dimension whose steps fit into a piece.
  uint64_t inner = num_elements_;
  for (split_ = 0; split_ < tensor.shape.size() && num_elements_ != 0; ++split_) {
    inner /= static_cast<uint64_t>(tensor.shape[split_]);
    if (inner <= kWindowElements) {
      break;
    }
  }
  inner_size_ = std::max<uint64_t>(inner, 1);
}

std::span<const std::byte> TensorReader::next() {
  if (next_ >= num_elements_) {
    return {};
  }
  if (tensor_.strides.empty()) {
    return next_contiguous();
  }
  // The piece: `count` steps of dimension split_, all of what is inside.
  const auto dimension = static_cast<uint64_t>(tensor_.shape[split_]);
  const uint64_t step = next_ / inner_size_ % dimension;
  const uint64_t count =
      std::min(dimension - step, std::max<uint64_t>(kWindowElements / inner_size_, 1));
  uint64_t first = step * static_cast<uint64_t>(tensor_.strides[split_]);
  uint64_t outer = next_ / inner_size_ / dimension;
  for (size_t i = split_; i-- > 0;) {
    const auto size = static_cast<uint64_t>(tensor_.shape[i]);
    first += outer % size * static_cast<uint64_t>(tensor_.strides[i]);
    outer /= size;
  }
  std::vector<Axis> axes;
  uint64_t to = inner_size_ * element_bytes_;
  for (size_t i = split_; i < tensor_.shape.size(); ++i) {
    const uint64_t size = i == split_ ? count : static_cast<uint64_t>(tensor_.shape[i]);
    to /= i == split_ ? 1 : size;
    axes.push_back({size, static_cast<uint64_t>(tensor_.strides[i]) * element_bytes_, to});
  }
  piece_.resize(count * inner_size_ * element_bytes_);
  gather(tensor_.offset_bytes + first * element_bytes_, std::move(axes));
  next_ += count * inner_size_;
  return piece_;
}

// Packed types too: pieces of them end at whole bytes, since a window is a multiple of 8.
std::span<const std::byte> TensorReader::next_contiguous() {
  const auto bits = static_cast<uint64_t>(bits_of(tensor_.dtype));
  // Cut where a strided tensor of this shape would be, but never larger steps than a window.
  uint64_t count = std::min(num_elements_ - next_, kWindowElements);
  if (!tensor_.shape.empty() && bits >= 8) {
    const auto dimension = static_cast<uint64_t>(tensor_.shape[split_]);
    const uint64_t step = next_ / inner_size_ % dimension;
    count = std::min(dimension - step, std::max<uint64_t>(kWindowElements / inner_size_, 1)) *
            inner_size_;
  }
  piece_.resize(count * bits / 8);
  source_.read_at(tensor_.offset_bytes + next_ * bits / 8, piece_);
  next_ += count;
  return piece_;
}

void TensorReader::gather(uint64_t first, std::vector<Axis> axes) {
  std::stable_sort(axes.begin(), axes.end(),
                   [](const Axis& a, const Axis& b) { return a.from > b.from; });
  uint64_t span = element_bytes_;
  for (const Axis& axis : axes) {
    span += (axis.size - 1) * axis.from;
  }
  if (span <= kMaxSpanBytes) {
    buffer_.resize(span);
    source_.read_at(first, buffer_);
    copy_spaced(axes, buffer_.data(), piece_.data());
  } else {
    copy_runs(axes, first, piece_.data());
  }
}

void TensorReader::copy_spaced(std::span<const Axis> axes, const std::byte* from,
                               std::byte* to) const {
  if (axes.empty()) {
    std::memcpy(to, from, element_bytes_);
    return;
  }
  const Axis& axis = axes.front();
  for (uint64_t i = 0; i < axis.size; ++i) {
    copy_spaced(axes.subspan(1), from + i * axis.from, to + i * axis.to);
  }
}

// The outer dimensions are far apart: reads what is inside each step of them.
void TensorReader::copy_runs(std::span<const Axis> axes, uint64_t from, std::byte* to) {
  uint64_t span = element_bytes_;
  for (const Axis& axis : axes.subspan(1)) {
    span += (axis.size - 1) * axis.from;
  }
  for (uint64_t i = 0; i < axes.front().size; ++i) {
    const uint64_t place = from + i * axes.front().from;
    std::byte* target = to + i * axes.front().to;
    if (span > kMaxSpanBytes) {
      copy_runs(axes.subspan(1), place, target);
      continue;
    }
    buffer_.resize(span);
    source_.read_at(place, buffer_);
    copy_spaced(axes.subspan(1), buffer_.data(), target);
  }
}

}  // namespace lockstep::formats
