#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "comm/backends/backend.h"

namespace lockstep {
namespace {

TEST(Call, TextsSayWhatWasCalled) {
  const at::Tensor x = at::zeros({7, 143});
  comm::Call call{.operation = comm::Operation::AllReduce,
                  .input = x,
                  .output = x,
                  .reduce = ReduceOp::Average};
  call.sequence = 12;
  EXPECT_EQ(call.text(), "all_reduce #12 (average, Float, 1001 elements)");
  EXPECT_EQ(call.signature(), "all_reduce (average, Float, 1001 elements)");
  const comm::Call message{.operation = comm::Operation::Recv, .output = x, .peer = 3, .tag = 5};
  EXPECT_EQ(message.text(), "recv (from rank 3, tag 5, Float, 1001 elements)");
  const comm::Call root{
      .operation = comm::Operation::Broadcast, .input = x, .output = x, .peer = 2};
  EXPECT_EQ(root.signature(), "broadcast (root 2, Float, 1001 elements)");
  EXPECT_EQ(comm::Call{.operation = comm::Operation::Connect}.text(), "make_group");
}

}  // namespace
}  // namespace lockstep
