#include "checkpoint/layout.h"

#include <algorithm>
#include <functional>
#include <map>
#include <unordered_set>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <lockstep/base/error.h>

#include "base/hash.h"
#include "base/round.h"
#include "device/memory.h"
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
  if (tensor.data == nullptr) {  // it goes to the disk from memory that begins with the range
    const uint64_t bytes =
        tensor.bytes < kSmallBytes ? 0 : (range.end - range.begin) / kPage * kPage;
    return {.tensor = range.tensor, .begin = range.begin, .end = range.begin + bytes};
  }
  const auto address = reinterpret_cast<uintptr_t>(tensor.data);
  const uint64_t begin = base::rounded_up<uint64_t>(address + range.begin, kPage) - address;
  const uint64_t end = (address + range.end) / kPage * kPage - address;
  const bool is_empty = tensor.bytes < kSmallBytes || address % element_bytes(tensor.dtype) != 0 ||
                        address + range.end < kPage || begin >= end || end > range.end;
  return is_empty ? Range{.tensor = range.tensor, .begin = range.begin, .end = range.begin}
                  : Range{.tensor = range.tensor, .begin = begin, .end = end};
}

// Tensors of a device as bytes, in the order of their elements. Those that are not contiguous are
// copied, once each: only the share's.
class DeviceBytes {
 public:
  explicit DeviceBytes(const std::vector<SavedTensor>& tensors) : tensors_(tensors) {}

  at::Tensor of(const Range& range) {
    at::Tensor& bytes = bytes_[range.tensor];
    if (!bytes.defined()) {
      const SavedTensor& saved = tensors_[range.tensor];
      bytes = device::bytes_of(with_memory(saved.tensor.device(), saved.bytes,
                                           [&] { return saved.tensor.contiguous(); }));
    }
    return bytes.narrow(0, static_cast<int64_t>(range.begin),
                        static_cast<int64_t>(range.end - range.begin));
  }

  static at::Tensor joined(const std::vector<at::Tensor>& parts, uint64_t bytes) {
    return parts.empty() ? at::Tensor()
                         : with_memory(parts[0].device(), bytes, [&] { return at::cat(parts); });
  }

 private:
  static at::Tensor with_memory(at::Device device, uint64_t bytes,
                                const std::function<at::Tensor()>& make) {
    return device::with_memory({.user = "checkpoint", .device = device, .bytes = bytes}, make);
  }

  const std::vector<SavedTensor>& tensors_;
  std::map<size_t, at::Tensor> bytes_;
};

void add_memory(Share& share, const std::vector<SavedTensor>& tensors,
                const std::vector<Range>& bodies, const std::vector<Range>& rest) {
  const at::NoGradGuard no_grad;
  DeviceBytes device_bytes(tensors);
  for (const Range& body : bodies) {
    const std::byte* data = tensors[body.tensor].data;
    if (data != nullptr) {
      share.bodies.push_back({data + body.begin, body.end - body.begin});
    } else {
      share.device_bodies.push_back(device_bytes.of(body));
    }
  }
  std::vector<at::Tensor> device_rest;
  uint64_t num_device_bytes = 0;
  for (const Range& range : rest) {
    const std::byte* data = tensors[range.tensor].data;
    const uint64_t bytes = range.end - range.begin;
    if (data != nullptr) {
      share.rest.insert(share.rest.end(), data + range.begin, data + range.end);
      continue;
    }
    share.gaps.push_back({.at = share.rest.size(), .bytes = bytes});
    share.rest.resize(share.rest.size() + bytes);
    device_rest.push_back(device_bytes.of(range));
    num_device_bytes += bytes;
  }
  share.device_rest = DeviceBytes::joined(device_rest, num_device_bytes);
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
    if (!device::is_dense(named.tensor)) {
      throw UsageError("checkpoint: tensor {} is not a dense tensor of the CPU or a GPU",
                       base::shown(named.name));
    }
    const bool is_on_host = !device::needs_copies(named.tensor.device());
    const at::Tensor dense =
        is_on_host ? named.tensor.detach().contiguous() : named.tensor.detach();
    saved.push_back(
        {.name = named.name,
         .dtype = dtype_of(named),
         .shape = dense.sizes().vec(),
         .tensor = dense,
         .data = is_on_host ? static_cast<const std::byte*>(dense.const_data_ptr()) : nullptr,
         .bytes = dense.nbytes()});
  }
  device_of(saved);
  return saved;
}

std::optional<at::Device> device_of(const std::vector<SavedTensor>& tensors) {
  const SavedTensor* first = nullptr;
  for (const SavedTensor& tensor : tensors) {
    if (tensor.data != nullptr || !device::needs_copies(tensor.tensor.device())) {
      continue;
    }
    if (first != nullptr && first->tensor.device() != tensor.tensor.device()) {
      throw UsageError(
          "checkpoint: tensor {} is on {} and {} on {}; a rank saves tensors of one GPU, move "
          "those of the other to the CPU",
          base::shown(first->name), first->tensor.device().str(), base::shown(tensor.name),
          tensor.tensor.device().str());
    }
    first = &tensor;
  }
  return first != nullptr ? std::optional(first->tensor.device()) : std::nullopt;
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
  std::stable_partition(bodies.begin(), bodies.end(),
                        [&](const Range& body) { return tensors[body.tensor].data != nullptr; });
  // Large elements first: every piece is then aligned for those who map the file.
  std::stable_sort(rest.begin(), rest.end(), [&](const Range& a, const Range& b) {
    return element_bytes(tensors[a.tensor].dtype) > element_bytes(tensors[b.tensor].dtype);
  });
  Share share;
  add_memory(share, tensors, bodies, rest);
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
