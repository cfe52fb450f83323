#pragma once

// PowerSGD (Vogels, Karimireddy and Jaggi 2019): a gradient matrix travels as the product of two
// thin ones, hundreds of times fewer bytes for large layers, and what that leaves out is added to
// the next step's gradient.
//
//   lockstep::DistributedDataParallel ddp(
//       model, group, {.comm_hook = lockstep::power_sgd({.rank = 2, .start_step = 500})});
//
// For each parameter of at least two dimensions the gradient is a matrix M of size(0) rows. With a
// matrix Q of `rank` columns, the same on all ranks:
//
//   P = M Q, summed over the ranks; its columns made orthonormal        rows x rank elements sent
//   Q = M^T P, averaged over the ranks                                  columns x rank sent
//   the gradient becomes P Q^T, the same bits on every rank
//   M - P Q^T, each rank's own, is remembered and added to its next M (error feedback)
//
// That is one step of the power method: as Q is kept (warm start), it turns to the directions in
// which the gradients are large. A parameter of one dimension, or one for which
//   (rows + columns) * rank * min_compression_rate >= rows * columns,
// is averaged whole, together with the Ps of its bucket. `rank` is cut to the smaller side.
//
// Choosing: start with rank 1 or 2 and double it while the loss is worse than without. Compressing
// too early costs quality: start_step of a tenth of the steps, and not before the learning rate's
// warm-up is over, is a good beginning. It pays where the network is slow: two matrix products per
// parameter are saved only where bytes are dear.
//
// What differs from PyTorch's powerSGD_hook: Q is drawn from the seed, the step and the parameter's
// name, so that it does not depend on how parameters are put into buckets; state belongs to the
// parameter and survives new buckets; a gradient that is zero or of lower rank than `rank` gives no
// NaN, also with orthogonalization_epsilon = 0; a gradient that is not finite shows in the result
// on every rank and is forgotten afterwards. In a group of one the gradient stays as it is.
//
// After DistributedDataParallel::rebind ranks agree on the highest count of steps among them and Q
// is drawn anew; each keeps what it has left out. Nothing of this is in checkpoints: a resumed run
// averages for start_step steps again (2 are enough then).
//
// Memory: P, Q and the parameters averaged whole, from Group::allocate(); Q; with error feedback a
// copy of the compressed gradients. Types: float32 and float64; buckets of others are averaged.

#include <cstdint>
#include <memory>

#include <lockstep/ddp/comm_hook.h>

namespace lockstep {

struct PowerSgdOptions {
  int64_t rank = 1;  // >= 1: columns of P and Q; more are more exact and more bytes

  // The first steps average the whole gradients. >= 2 with error feedback or warm start: what they
  // remember shall not come from a model that has hardly begun; else >= 0.
  int64_t start_step = 1000;

  bool use_error_feedback = true;  // without it the model may not converge
  bool warm_start = true;          // false: another random Q in every step, less exact

  double min_compression_rate = 2;  // >= 0: a parameter must shrink by more than this; 0: all do

  uint64_t seed = 0;  // of Q, the same on every rank

  // >= 0: added to the length by which a column of P or Q is divided, as PyTorch has it. 0 is
  // exact.
  double orthogonalization_epsilon = 0;
};

// Throws UsageError when an option is out of range. The hook belongs to one
// DistributedDataParallel: make another for another model.
std::shared_ptr<CommHook> power_sgd(PowerSgdOptions options = {});

}  // namespace lockstep
