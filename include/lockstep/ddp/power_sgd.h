#pragma once

// PowerSGD (Vogels, Karimireddy and Jaggi 2019). A gradient matrix travels as the product of two
// thin matrices, which for large layers are hundreds of times fewer bytes. What the product leaves
// out is added to the next step's gradient.
//
// Example:
//   lockstep::DistributedDataParallel ddp(
//       model, group, {.comm_hook = lockstep::power_sgd({.rank = 2, .start_step = 500})});
//
// The gradient of each parameter of at least two dimensions is a matrix M of size(0) rows. With a
// matrix Q of `rank` columns, the same on all ranks, a step computes and sends
//
//   step                                                              elements sent
//   P = M Q, summed over the ranks, its columns made orthonormal      rows x rank
//   Q = M^T P, averaged over the ranks                                columns x rank
//   the gradient becomes P Q^T, the same bits on every rank           none
//   M - P Q^T is remembered by each rank and added to its next M      none
//
// The last line is called error feedback. The whole is one step of the power method: as Q is kept
// (warm start), it turns to the directions in which the gradients are large. A parameter of one
// dimension is averaged whole, together with the Ps of its bucket. So is one for which
// (rows + columns) * rank * min_compression_rate >= rows * columns. `rank` is at most the smaller
// of rows and columns.
//
// How to choose: start with rank 1 or 2 and double it while the loss is worse than without the
// hook. Compressing too early costs quality, so begin with a start_step of a tenth of all steps and
// not before the learning rate's warm-up is over. The hook pays where the network is slow, because
// it spends two matrix products per parameter to save bytes.
//
// It differs from PyTorch's powerSGD_hook in four points. Q is drawn from the seed, the step and
// the parameter's name, so it does not depend on how parameters are put into buckets. State belongs
// to the parameter and survives new buckets. A gradient that is zero, or of lower rank than `rank`,
// makes no NaN, even with orthogonalization_epsilon = 0. A gradient that is not finite shows in the
// result on every rank and is forgotten afterwards. In a group of one the gradient stays as it is.
//
// After DistributedDataParallel::rebind() the ranks agree on the highest count of steps among them
// and draw Q anew; each keeps what it has left out. Checkpoints hold none of this: a resumed run
// averages for start_step steps again, and a start_step of 2 is enough for it.
//
// Memory: P, Q and the parameters that are averaged whole lie in memory of Group::allocate().
// In addition the hook keeps Q and, with error feedback, a copy of the compressed gradients.
// Types: float32 and float64; buckets of other types are averaged.

#include <cstdint>
#include <memory>

#include <lockstep/ddp/comm_hook.h>

namespace lockstep {

struct PowerSgdOptions {
  int64_t rank = 1;  // >= 1: the columns of P and Q; more are more exact and more bytes

  // How many steps at first average the whole gradients. It must be >= 2 with error feedback or
  // warm start, so that what they remember does not come from a model that has hardly begun, and
  // else >= 0.
  int64_t start_step = 1000;

  bool use_error_feedback = true;  // without it the model may not converge
  bool warm_start = true;          // false draws another Q in every step, which is less exact

  double min_compression_rate = 2;  // >= 0: a parameter must shrink by more than this; 0: all do

  uint64_t seed = 0;  // for Q; the same on every rank

  // >= 0: is added to the length by which a column of P or Q is divided, as PyTorch does. 0 is
  // exact.
  double orthogonalization_epsilon = 0;
};

// Makes the hook. It belongs to one DistributedDataParallel: make another for another model. Throws
// UsageError if an option is out of range.
std::shared_ptr<CommHook> power_sgd(PowerSgdOptions options = {});

}  // namespace lockstep
