#pragma once

// What communication hooks remember between steps: memory that the group reduces, and how many
// steps there were.

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/ddp/comm_hook.h>

namespace lockstep::ddp {

// One piece of group_memory() per bucket, kept while bucket and group stay the same.
class HookMemory {
 public:
  // Collective whenever the answer is new: every rank asks for the same pieces in the same order.
  // `numel` elements of the type and on the device of `options`; what is in them is whatever was
  // left there.
  at::Tensor piece(size_t bucket, int64_t numel, const at::TensorOptions& options, Group& group);

 private:
  struct Piece {
    at::Tensor bytes;
    uint64_t group = 0;  // Group::id(); 0 is no group's
  };
  std::vector<Piece> pieces_;
};

// Counts steps, the same on all ranks: those that come together in a new group (a lost rank was
// replaced) agree on the highest count among them.
class HookSteps {
 public:
  // Call it first. Collective when the group is another one than last time: then it returns true.
  bool enter(Group& group);

  // Finished ones.
  int64_t count() const { return count_; }

  // Call it when a step is over.
  void advance() { ++count_; }

 private:
  int64_t count_ = 0;
  uint64_t group_ = 0;
};

}  // namespace lockstep::ddp
