#include "checkpoint/layout.h"

#include <algorithm>
#include <unordered_set>

#include <lockstep/base/error.h>

#include "base/hash.h"
#include "base/round.h"
#include "formats/safetensors.h"
#include "weights/scalar_type.h"

namespace lockstep::checkpoint {

namespace {

constexpr uint64_t kPage = 4096;

formats::DType dtype_of(const NamedTensor& named) {
  for (int i = 0; i <= static_cast<int>(formats::DType::C128); ++i) {
    if (weights::scalar_type_of(static_cast<formats::DType>(i)) == named.tensor.scalar_type()) {
      return static_cast<formats::DType>(i);
    }
  }
  throw UsageError("checkpoint: tensor {} has the type {}, which no file can hold",
                   base::shown(named.name), toString(named.tensor.scalar_type()));
}

uint64_t element_bytes(formats::DType dtype) {
  return static_cast<uint64_t>(formats::bits_of(dtype) / 8);
}

// Bytes [begin, end) of a tensor.
struct Range {
  size_t tensor = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
};

// Where share number `rank` begins: in a large tensor at a page, else where a tensor does.
uint64_t cut(const std::vector<SavedTensor>& tensors, uint64_t total, ShareOptions options) {
  const auto rank = static_cast<uint64_t>(options.rank);
  const auto size = static_cast<uint64_t>(options.size);
  const uint64_t wanted = total / size * rank + total % size * rank / size;  // cannot overflow
  uint64_t position = 0;
  for (const SavedTensor& tensor : tensors) {
    if (wanted < position + tensor.bytes) {
      return tensor.bytes < kSmallBytes ? position : position + (wanted - position) / kPage * kPage;
    }
    position += tensor.bytes;
  }
  return position;
}

std::vector<Range> ranges_of(const std::vector<SavedTensor>& tensors, ShareOptions options) {
  uint64_t total = 0;
  for (const SavedTensor& tensor : tensors) {
    total += tensor.bytes;
  }
  const uint64_t begin = cut(tensors, total, options);
  const uint64_t end = cut(tensors, total, {.rank = options.rank + 1, .size = options.size});
  std::vector<Range> ranges;
  uint64_t position = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t first = std::max(begin, position);
    const uint64_t last = std::min(end, position + tensors[i].bytes);
    if (first < last) {
      ranges.push_back({.tensor = i, .begin = first - position, .end = last - position});
    }
    position += tensors[i].bytes;
  }
  return ranges;
}

// The whole pages of memory in a range; empty where there are none, or the tensor is small.
Range body_of(const SavedTensor& tensor, const Range& range) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.data);
  const uint64_t begin = base::rounded_up<uint64_t>(address + range.begin, kPage) - address;
  const uint64_t end = (address + range.end) / kPage * kPage - address;
  const bool is_empty = tensor.bytes < kSmallBytes || address % element_bytes(tensor.dtype) != 0 ||
                        address + range.end < kPage || begin >= end || end > range.end;
  return is_empty ? Range{.tensor = range.tensor, .begin = range.begin, .end = range.begin}
                  : Range{.tensor = range.tensor, .begin = begin, .end = end};
}

// The shard as a safetensors file: flat pieces, in the order of their bytes.
std::string head_of(const std::vector<SavedTensor>& tensors, const std::vector<Range>& ranges) {
  std::vector<formats::TensorInfo> infos;
  uint64_t end = 0;
  for (const Range& range : ranges) {
    const SavedTensor& tensor = tensors[range.tensor];
    const uint64_t size = range.end - range.begin;
    const uint64_t unit = element_bytes(tensor.dtype);
    const bool is_known = formats::dtype_of_safetensors(formats::name_of(tensor.dtype)).has_value();
    formats::TensorInfo info{.name = tensor.name,
                             .dtype = is_known ? tensor.dtype : formats::DType::U8,
                             .shape = {static_cast<int64_t>(is_known ? size / unit : size)},
                             .strides = {},
                             .offset_bytes = end,
                             .size_bytes = size};
    if (size == tensor.bytes && is_known) {
      info.shape = tensor.shape;
    } else {
      info.name += fmt::format("[{}:{}]", range.begin / unit, range.end / unit);
    }
    infos.push_back(std::move(info));
    end += size;
  }
  return formats::safetensors_head("checkpoint", infos, {{"format", "lockstep-checkpoint"}});
}

}  // namespace

std::vector<SavedTensor> saved_tensors(const std::vector<NamedTensor>& tensors) {
  std::vector<SavedTensor> saved;
  std::unordered_set<std::string_view> names;
  for (const NamedTensor& named : tensors) {
    if (named.name.empty() || !names.insert(named.name).second) {
      throw UsageError("checkpoint: the name {} is empty or stands there twice",
                       base::shown(named.name));
    }
    if (!named.tensor.defined() || named.tensor.layout() != at::kStrided ||
        !named.tensor.device().is_cpu()) {
      throw UsageError("checkpoint: tensor {} is not a dense tensor of the CPU",
                       base::shown(named.name));
    }
    const at::Tensor dense = named.tensor.detach().contiguous();
    saved.push_back({.name = named.name,
                     .dtype = dtype_of(named),
                     .shape = dense.sizes().vec(),
                     .tensor = dense,
                     .data = static_cast<const std::byte*>(dense.const_data_ptr()),
                     .bytes = dense.nbytes()});
  }
  return saved;
}

uint64_t fingerprint_of(const std::vector<SavedTensor>& tensors) {
  base::Fnv1a hash;
  for (const SavedTensor& tensor : tensors) {
    hash.add(uint64_t{tensor.name.size()});
    hash.add(tensor.name);
    hash.add(static_cast<uint64_t>(tensor.dtype));
    hash.add(uint64_t{tensor.shape.size()});
    for (const int64_t size : tensor.shape) {
      hash.add(static_cast<uint64_t>(size));
    }
  }
  return hash.value();
}

Share make_share(const std::vector<SavedTensor>& tensors, ShareOptions options) {
  std::vector<Range> bodies;
  std::vector<Range> rest;
  for (const Range& range : ranges_of(tensors, options)) {
    const Range body = body_of(tensors[range.tensor], range);
    if (body.begin < body.end) {
      bodies.push_back(body);
    }
    for (const Range& end :
         {Range{range.tensor, range.begin, body.begin}, Range{range.tensor, body.end, range.end}}) {
      if (end.begin < end.end) {
        rest.push_back(end);
      }
    }
  }
  // Large elements first: every piece is then aligned for those who map the file.
  std::stable_sort(rest.begin(), rest.end(), [&](const Range& a, const Range& b) {
    return element_bytes(tensors[a.tensor].dtype) > element_bytes(tensors[b.tensor].dtype);
  });
  Share share;
  for (const Range& body : bodies) {
    share.bodies.push_back({tensors[body.tensor].data + body.begin, body.end - body.begin});
  }
  for (const Range& range : rest) {
    const std::byte* data = tensors[range.tensor].data;
    share.rest.insert(share.rest.end(), data + range.begin, data + range.end);
  }
  std::vector<Range> all = std::move(bodies);
  all.insert(all.end(), rest.begin(), rest.end());
  share.head = head_of(tensors, all);
  uint64_t offset = share.head.size();
  for (const Range& range : all) {
    const uint64_t unit = element_bytes(tensors[range.tensor].dtype);
    share.pieces.push_back({.tensor = range.tensor,
                            .place = {.shard = 0,
                                      .offset_bytes = offset,
                                      .begin = range.begin / unit,
                                      .count = (range.end - range.begin) / unit}});
    offset += range.end - range.begin;
  }
  share.file_bytes = offset;
  std::sort(share.pieces.begin(), share.pieces.end(),
            [](const Share::Piece& a, const Share::Piece& b) {
              return std::pair(a.tensor, a.place.begin) < std::pair(b.tensor, b.place.begin);
            });
  return share;
}

}  // namespace lockstep::checkpoint
