#pragma once

namespace at {
class Tensor;
}

namespace lockstep {

class Group;

namespace testing_support {

// Collective: every rank's tensor has the bits of rank 0's.
bool same_on_all_ranks(Group& group, const at::Tensor& tensor);

}  // namespace testing_support
}  // namespace lockstep
