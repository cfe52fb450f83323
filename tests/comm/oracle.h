#pragma once

// What ranks give to an operation in tests, and what must come out: pure functions of rank, type
// and size. Every rank gives something else, neighbours differ, sums are exact in every type and
// hardly ever zero: a result that is zeroed, or lacks a rank, or has one twice, or has its elements
// in other places, is a wrong one at every world size.

#include <algorithm>
#include <map>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <lockstep/comm/group.h>

namespace lockstep::testing_support {

// The most ranks whose sums and products are exact in every type.
constexpr int kMostRanks = 8;

// What there is is repeated after so many elements: a prime, and so no multiple of what operations
// are cut into.
constexpr int64_t kPeriod = 65'521;
constexpr int64_t kBetweenRanks = 8191;

enum class Values {
  Terms,     // never zero, and of one sign in small types
  Signs,     // 1 or -1
  Extremes,  // of both signs
  Factors,   // powers of two, or odd numbers: a product is never zero, even if it wraps around
  MostBits,  // in seven of eight ranks' all set, so that those of eight ranks leave something
  FewBits
};

// kPeriod random values of a kind.
inline at::Tensor make_values(at::ScalarType type, Values values) {
  auto generator =
      at::make_generator<at::CPUGeneratorImpl>(1 + 100 * static_cast<uint64_t>(values));
  const auto draw = [&](int64_t first, int64_t last) {
    return at::randint(first, last + 1, {kPeriod}, generator, at::kLong);
  };
  // 8 * 15 is below what int8 and bfloat16 hold, 8 * 2^20 below what float32 does.
  const bool is_narrow = c10::elementSize(type) <= 2;
  const int64_t largest = is_narrow ? 15 : 1 << 20;
  const at::Tensor signs = type == at::kByte ? at::ones({kPeriod}, at::kLong) : draw(0, 1) * 2 - 1;
  switch (values) {
    case Values::Terms:
      return (draw(1, largest) * (is_narrow ? at::ones_like(signs) : signs)).to(type);
    case Values::Signs:
      return signs.to(type);
    case Values::Extremes:
      return (draw(1, largest) * signs).to(type);
    case Values::Factors:
      return c10::isFloatingType(type)
                 ? at::pow(2.0, draw(-1, 1).to(at::kDouble)).mul(signs).to(type)
                 : (draw(1, 6) * 2 + 1).mul(signs).to(type);
    case Values::MostBits:
    case Values::FewBits:
      break;
  }
  const int64_t all = type == at::kBool ? 1 : 0xffffffff;
  const at::Tensor few = draw(0, all).bitwise_and(draw(0, all)).bitwise_and(draw(0, all));
  return (values == Values::FewBits ? few : all - few).to(type);
}

// Elements [first, first + numel) of make_values() without end.
inline at::Tensor values_of(at::ScalarType type, Values values, int64_t first, int64_t numel) {
  static std::map<std::pair<at::ScalarType, Values>, at::Tensor> made;
  at::Tensor& period = made[{type, values}];
  if (!period.defined()) {
    period = make_values(type, values);
  }
  at::Tensor result = at::empty({numel}, type);
  for (int64_t done = 0; done < numel;) {
    const int64_t place = (first + done) % kPeriod;
    const int64_t count = std::min(numel - done, kPeriod - place);
    result.narrow(0, done, count).copy_(period.narrow(0, place, count));
    done += count;
  }
  return result;
}

// Elements [first, first + numel) of what `rank` gives to a reduction by `op`.
inline at::Tensor input_of(int rank, int64_t numel, at::ScalarType type, int64_t first = 0,
                           ReduceOp op = ReduceOp::Sum) {
  const int64_t own_first = first + rank * kBetweenRanks;
  switch (op) {
    case ReduceOp::BitAnd:
      return values_of(type, Values::MostBits, own_first, numel);
    case ReduceOp::BitOr:
      return values_of(type, Values::FewBits, own_first, numel);
    case ReduceOp::Product:
      return values_of(type, Values::Factors, own_first, numel);
    case ReduceOp::Min:
    case ReduceOp::Max:
      return values_of(type, Values::Extremes, own_first, numel);
    case ReduceOp::Sum:
    case ReduceOp::Average:
      break;
  }
  if (type == at::kBool) {
    return values_of(type, Values::FewBits, own_first, numel);
  }
  const at::Tensor terms = values_of(type, Values::Terms, own_first, numel);
  return c10::elementSize(type) <= 2 ? terms * values_of(type, Values::Signs, first, numel) : terms;
}

inline bool is_reducible(at::ScalarType type, ReduceOp op) {
  const bool is_bitwise = op == ReduceOp::BitAnd || op == ReduceOp::BitOr;
  if (type == at::kBool) {
    return is_bitwise;
  }
  const bool is_floating = c10::isFloatingType(type);
  return is_bitwise ? !is_floating : (op != ReduceOp::Average || is_floating);
}

inline at::Tensor reduced(int world, int64_t numel, at::ScalarType type, ReduceOp op,
                          int64_t first = 0) {
  TORCH_CHECK(world <= kMostRanks);
  at::Tensor sum = input_of(0, numel, type, first, op);
  for (int rank = 1; rank < world; ++rank) {
    const at::Tensor x = input_of(rank, numel, type, first, op);
    switch (op) {
      case ReduceOp::Sum:
      case ReduceOp::Average:
        sum = sum + x;
        break;
      case ReduceOp::Min:
        sum = at::minimum(sum, x);
        break;
      case ReduceOp::Max:
        sum = at::maximum(sum, x);
        break;
      case ReduceOp::Product:
        sum = sum * x;
        break;
      case ReduceOp::BitAnd:
        sum = at::bitwise_and(sum, x);
        break;
      case ReduceOp::BitOr:
        sum = at::bitwise_or(sum, x);
        break;
    }
  }
  return op == ReduceOp::Average ? sum.div(world).to(type) : sum;
}

}  // namespace lockstep::testing_support
