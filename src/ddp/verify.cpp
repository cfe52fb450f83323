#include "ddp/verify.h"

#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

#include "base/hash.h"

namespace lockstep::ddp {

void verify_equal(Group& group, const NamedTensors& tensors, int64_t step) {
  const auto count = static_cast<int64_t>(tensors.size());
  const at::Tensor mine = at::empty({count}, at::kLong);
  for (int64_t i = 0; i < count; ++i) {
    const at::Tensor dense =
        tensors[static_cast<size_t>(i)].second.detach().to(at::kCPU).contiguous();
    mine.mutable_data_ptr<int64_t>()[i] = static_cast<int64_t>(
        base::xxh3({static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()}));
  }
  const at::Tensor all = at::empty({group.size(), count}, at::kLong);
  group.all_gather(all, mine);
  const int64_t* hashes = all.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    std::vector<int> differing;
    for (int rank = 1; rank < group.size(); ++rank) {
      if (hashes[rank * count + i] != hashes[i]) {
        differing.push_back(rank);
      }
    }
    if (!differing.empty()) {
      throw DesyncError(
          "ddp: after step {} parameter '{}' of rank {} differs from rank 0's; did a rank change "
          "it "
          "by itself, or get other gradients?",
          step, tensors[static_cast<size_t>(i)].first, fmt::join(differing, ", "));
    }
  }
}

}  // namespace lockstep::ddp
