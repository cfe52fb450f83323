#include "weights/sink.h"

#include <algorithm>

namespace lockstep::weights {

void Scatter::put(uint64_t position, std::span<const std::byte> bytes) {
  const uint64_t end = position + bytes.size();
  while (next_ < plan_.tensors.size() && plan_.tensors[next_].position < end) {
    open_.push_back(next_++);
  }
  std::erase_if(open_, [&](size_t which) {
    const PlannedTensor& planned = plan_.tensors[which];
    const uint64_t tensor_end = planned.position + planned.tensor->info.size_bytes;
    const uint64_t from = std::max(planned.position, position);
    const uint64_t to = std::min(tensor_end, end);
    sink_.put(which, from - planned.position, bytes.subspan(from - position, to - from));
    return tensor_end <= end;
  });
}

}  // namespace lockstep::weights
