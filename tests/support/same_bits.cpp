#include "support/same_bits.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <lockstep/comm/group.h>

namespace lockstep::testing_support {

bool same_on_all_ranks(Group& group, const at::Tensor& tensor) {
  const at::Tensor mine = tensor.detach().contiguous().view({-1});
  const at::Tensor all = at::empty({group.size(), mine.numel()}, mine.options());
  group.all_gather(all, mine);
  for (int rank = 1; rank < group.size(); ++rank) {
    if (!all[rank].view(at::kByte).equal(all[0].view(at::kByte))) {  // bytes: a NaN equals itself
      return false;
    }
  }
  return true;
}

}  // namespace lockstep::testing_support
