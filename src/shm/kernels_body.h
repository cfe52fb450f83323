#pragma once

// The kernels, for the instruction set that the including file is compiled for; see
// kernels_vector.h for why all of this is in an anonymous namespace.

#include "shm/kernels.h"
#include "shm/kernels_vector.h"

namespace lockstep::shm {
namespace {

// ---- operations: what a node of the tree does ----

// kMaxFused is how many sources one pass can read; kDivides, whether the root is divided.
struct SumOperation {
  static constexpr int kMaxFused = 8;
  static constexpr bool kDivides = false;
  template <typename V>
  static V combine(V left, V right) {
    return left + right;
  }
};

struct AverageOperation : SumOperation {
  static constexpr bool kDivides = true;
};

// Training hardly uses these: two sources at a time is fast enough, and less code.
struct RareOperation {
  static constexpr int kMaxFused = 2;
  static constexpr bool kDivides = false;
};

struct ProductOperation : RareOperation {
  template <typename V>
  static V combine(V left, V right) {
    return left * right;
  }
};

struct MinOperation : RareOperation {
  template <typename V>
  static V combine(V left, V right) {
    return ((right < left) | (right != right)) ? right : left;
  }
};

struct MaxOperation : RareOperation {
  template <typename V>
  static V combine(V left, V right) {
    return ((right > left) | (right != right)) ? right : left;
  }
};

struct BitAndOperation : RareOperation {
  template <typename V>
  static V combine(V left, V right) {
    return left & right;
  }
};

struct BitOrOperation : RareOperation {
  template <typename V>
  static V combine(V left, V right) {
    return left | right;
  }
};

// ---- a kernel: From sources, To destinations ----

// The largest power of two below n, where the tree over n sources is split.
constexpr int split(int n) {
  int k = 1;
  while (2 * k < n) {
    k *= 2;
  }
  return k;
}

// A tile of accumulators, with the tiles of the sources that go into it, is at home in the
// first-level cache.
constexpr size_t kTileBytes = 4096;

// How far ahead of the loads lines are fetched to be written, in place. On two threads of an Ice
// Lake that do nothing else this made 25 MB a source 4 to 9 % faster, 1 MB up to 3 %, and 2 KB was
// no better; 4 KB is too far for 8 sources. In whole operations it is within the noise.
constexpr size_t kAheadBytes = 1024;

template <typename From, typename To, typename Operation>
struct Kernel {
  using Value = Accumulator<From>;
  static_assert(__is_same(Value, Accumulator<To>));
  static constexpr bool kSame = __is_same(From, To);
  static constexpr bool kFloating = __is_same(Value, float) || __is_same(Value, double);
  static constexpr int kParts = kSame && __is_same(From, BFloat) ? 2 : 1;
  static constexpr size_t kStep = kParts * kVectorBytes / sizeof(Value);
  static constexpr size_t kTile = kTileBytes / sizeof(Value);
  static_assert(kTile % kStep == 0);
  // Nobody waits for sums of integers.
  static constexpr int kMaxFused = kFloating ? Operation::kMaxFused : 2;
  using Values = Block<Value, kParts>;

  [[gnu::always_inline]] static Values combine(const Values& left, const Values& right) {
    Values result;
    for (int p = 0; p < kParts; ++p) {
      result.part[p] = Operation::combine(left.part[p], right.part[p]);
    }
    return result;
  }

  // Turns the root of the tree into the result.
  [[gnu::always_inline]] static Values finish(Values root, Value divisor) {
    for (auto& part : root.part) {
      if constexpr (Operation::kDivides) {
        part /= divisor;
      }
      // Which NaN comes out of two, or of infinities that cancel, depends on the processor and on
      // how the compiler orders the operands; the bits of a result must not. To bfloat16 they are
      // made one by the conversion.
      if constexpr (kFloating && !__is_same(To, BFloat)) {
        part =
            part != part ? decltype(part - part){} + static_cast<Value>(__builtin_nan("")) : part;
      }
    }
    return root;
  }

  // The tree over elements [at, at + kStep) of n sources.
  template <int n>
  [[gnu::always_inline]] static Values tree(const From* const* sources, size_t at) {
    if constexpr (n > 1) {
      constexpr int k = split(n);
      return combine(tree<k>(sources, at), tree<n - k>(sources + k, at));
    } else {
      Values leaf;
      load(sources[0] + at, leaf);
      return leaf;
    }
  }

  // ---- up to kMaxFused sources: one pass ----

  // Elements [begin, end), a multiple of kStep, to the first num_destinations.
  template <int n, int num_destinations>
  [[gnu::noinline]] static void fused(const ReduceArguments& arguments, size_t begin, size_t end) {
    // These pointers are copied to arrays that no store can change, so that they stay in registers.
    const From* sources[n];
    To* destinations[num_destinations];
    for (int s = 0; s < n; ++s) {
      sources[s] = static_cast<const From*>(arguments.sources[s]);
    }
    for (int d = 0; d < num_destinations; ++d) {
      destinations[d] = static_cast<To*>(arguments.destinations[d]);
    }
    const Value divisor = static_cast<Value>(arguments.divisor);
    constexpr int kToWrite = 1;
    for (size_t at = begin; at < end; at += kStep) {
      if constexpr (n > 1 && num_destinations == n) {
        // Not beyond the end, where another rank may be writing.
        if (at + kAheadBytes / sizeof(To) < end) {
          for (int d = 0; d < n; ++d) {
            __builtin_prefetch(destinations[d] + at + kAheadBytes / sizeof(To), kToWrite);
          }
        }
      }
      Values values = tree<n>(sources, at);
      if constexpr (n > 1 || Operation::kDivides) {
        values = finish(values, divisor);
      }
      for (int d = 0; d < num_destinations; ++d) {
        store(values, destinations[d] + at);
      }
    }
  }

  // ---- any number of sources: the same tree over tiles ----

  template <int n>
  [[gnu::noinline]] static void accumulate_leaves(const From* const* sources, size_t at,
                                                  size_t count, Value* tile) {
    for (size_t i = 0; i < count; i += kStep) {
      const Values values = tree<n>(sources, at + i);
      __builtin_memcpy(tile + i, &values, sizeof(values));
    }
  }

  [[gnu::noinline]] static void accumulate_rest(const From* source, size_t count, Value* tile) {
    From padded[kStep] = {};
    __builtin_memcpy(padded, source, count * sizeof(From));
    const From* const sources[1] = {padded};
    accumulate_leaves<1>(sources, 0, kStep, tile);
  }

  // The tree over elements [at, at + count) of n sources into `tile`, in the order in which blocks
  // hold them. The count is a multiple of kStep up to kTile, or less than kStep. Needs log2(n)
  // tiles of stack.
  [[gnu::noinline]] static void accumulate(const From* const* sources, int n, size_t at,
                                           size_t count, Value* tile) {
    if (n == 1 && count < kStep) {
      return accumulate_rest(sources[0] + at, count, tile);
    }
    if (n == 1) {
      return accumulate_leaves<1>(sources, at, count, tile);
    }
    if (n == kMaxFused && count >= kStep) {
      return accumulate_leaves<kMaxFused>(sources, at, count, tile);
    }
    const int k = split(n);
    alignas(kVectorBytes) Value right_tile[kTile];
    accumulate(sources, k, at, count, tile);
    accumulate(sources + k, n - k, at, count, right_tile);
    for (size_t i = 0; i < count; i += kStep) {
      Values left;
      Values right;
      __builtin_memcpy(&left, tile + i, sizeof(left));
      __builtin_memcpy(&right, right_tile + i, sizeof(right));
      left = combine(left, right);
      __builtin_memcpy(tile + i, &left, sizeof(left));
    }
  }

  // Elements [begin, end) to the first destination; how many is as for accumulate.
  [[gnu::noinline]] static void by_tile(const ReduceArguments& arguments, size_t begin,
                                        size_t end) {
    const size_t count = end - begin;
    alignas(kVectorBytes) Value tile[kTile];
    // The pointers are From's: made void in ReduceArguments for want of a type.
    accumulate(reinterpret_cast<const From* const*>(arguments.sources), arguments.num_sources,
               begin, count, tile);
    const bool is_copy = arguments.num_sources == 1 && !Operation::kDivides;
    const Value divisor = static_cast<Value>(arguments.divisor);
    To* const to = static_cast<To*>(arguments.destinations[0]) + begin;
    for (size_t i = 0; i < count; i += kStep) {
      Values values;
      To result[kStep];
      __builtin_memcpy(&values, tile + i, sizeof(values));
      store(is_copy ? values : finish(values, divisor), result);
      __builtin_memcpy(to + i, result, (count < kStep ? count : kStep) * sizeof(To));
    }
  }

  // ---- the choice between them ----

  template <int n = kMaxFused>
  static void to_first_destination(const ReduceArguments& arguments, size_t begin, size_t end) {
    if (arguments.num_sources == n && end - begin >= kStep) {
      fused<n, 1>(arguments, begin, end);
    } else if constexpr (n > 1) {
      to_first_destination<n - 1>(arguments, begin, end);
    } else {
      by_tile(arguments, begin, end);
    }
  }

  static void copy_tile(const void* from, void* to, size_t begin, size_t end) {
    if (from != to) {
      __builtin_memcpy(static_cast<To*>(to) + begin, static_cast<const To*>(from) + begin,
                       (end - begin) * sizeof(To));
    }
  }

  [[gnu::noinline]] static void to_all_destinations(const ReduceArguments& arguments, size_t begin,
                                                    size_t end) {
    if (kSame && arguments.num_sources == 1 && !Operation::kDivides) {
      copy_tile(arguments.sources[0], arguments.destinations[0], begin, end);
    } else {
      to_first_destination(arguments, begin, end);
    }
    for (int d = 1; d < arguments.num_destinations; ++d) {
      copy_tile(arguments.destinations[0], arguments.destinations[d], begin, end);
    }
  }

  static bool is_in_place(const ReduceArguments& arguments) {
    for (int s = 0; s < arguments.num_sources; ++s) {
      if (arguments.num_destinations != arguments.num_sources ||
          arguments.sources[s] != arguments.destinations[s]) {
        return false;
      }
    }
    return true;
  }

  // Reduces [0, end) in place, if there is such a kernel, and returns where it stopped. Storing
  // each result n times at once beat copying the first destination's tile n - 1 times, on an Ice
  // Lake and with page-aligned sources: mostly by 10 to 15 % at 25 and 100 MB a source, and by 30 %
  // at 64 KB for n of 4 and 8 (not for 2).
  template <int n = kMaxFused>
  static size_t in_place(const ReduceArguments& arguments, size_t end) {
    if constexpr (kSame && n == 8) {
      if (arguments.num_sources == 2 * n) {  // hosts of 16 cores are common
        fused<2 * n, 2 * n>(arguments, 0, end);
        return end;
      }
    }
    if constexpr (n < 2 || !kSame) {
      return 0;
    } else if (arguments.num_sources == n) {
      fused<n, n>(arguments, 0, end);
      return end;
    } else {
      return in_place<n - 1>(arguments, end);
    }
  }

  static void run(const ReduceArguments& arguments) {
    if (arguments.num_destinations == 0) {
      return;
    }
    const size_t whole = arguments.count - arguments.count % kStep;
    size_t begin = is_in_place(arguments) ? in_place(arguments, whole) : 0;
    for (; begin < whole; begin += kTile) {
      to_all_destinations(arguments, begin, whole - begin < kTile ? whole : begin + kTile);
    }
    if (whole < arguments.count) {
      to_all_destinations(arguments, whole, arguments.count);
    }
  }
};

// ---- the table ----

template <typename From, typename To>
ReduceKernel sum_kernel(Reduction reduction) {
  switch (reduction) {
    case Reduction::Sum:
      return Kernel<From, To, SumOperation>::run;
    case Reduction::Average:
      return Kernel<From, To, AverageOperation>::run;
    default:
      return nullptr;
  }
}

template <typename T>
ReduceKernel floating_kernel(Reduction reduction) {
  switch (reduction) {
    case Reduction::Min:
      return Kernel<T, T, MinOperation>::run;
    case Reduction::Max:
      return Kernel<T, T, MaxOperation>::run;
    case Reduction::Product:
      return Kernel<T, T, ProductOperation>::run;
    default:
      return sum_kernel<T, T>(reduction);
  }
}

// T is unsigned: bits are bits.
template <typename T>
ReduceKernel bit_kernel(Reduction reduction) {
  switch (reduction) {
    case Reduction::BitAnd:
      return Kernel<T, T, BitAndOperation>::run;
    case Reduction::BitOr:
      return Kernel<T, T, BitOrOperation>::run;
    default:
      return nullptr;
  }
}

// Arithmetic is done in the unsigned type, which may wrap around; only comparisons need the sign.
template <typename T, typename Unsigned>
ReduceKernel integer_kernel(Reduction reduction) {
  switch (reduction) {
    case Reduction::Sum:
      return Kernel<Unsigned, Unsigned, SumOperation>::run;
    case Reduction::Product:
      return Kernel<Unsigned, Unsigned, ProductOperation>::run;
    case Reduction::Min:
      return Kernel<T, T, MinOperation>::run;
    case Reduction::Max:
      return Kernel<T, T, MaxOperation>::run;
    default:
      return bit_kernel<Unsigned>(reduction);
  }
}

ReduceKernel mixed_kernel(const KernelKey& key) {
  if (key.from == DataType::Float16 && key.to == DataType::Float32) {
    return sum_kernel<Half, float>(key.reduction);
  }
  if (key.from == DataType::BFloat16 && key.to == DataType::Float32) {
    return sum_kernel<BFloat, float>(key.reduction);
  }
  if (key.from == DataType::Float32 && key.to == DataType::Float16) {
    return sum_kernel<float, Half>(key.reduction);
  }
  if (key.from == DataType::Float32 && key.to == DataType::BFloat16) {
    return sum_kernel<float, BFloat>(key.reduction);
  }
  return nullptr;
}

ReduceKernel lookup(const KernelKey& key) {
  if (key.from != key.to) {
    return mixed_kernel(key);
  }
  switch (key.from) {
    case DataType::Float32:
      return floating_kernel<float>(key.reduction);
    case DataType::Float64:
      return floating_kernel<double>(key.reduction);
    case DataType::Float16:
      return floating_kernel<Half>(key.reduction);
    case DataType::BFloat16:
      return floating_kernel<BFloat>(key.reduction);
    case DataType::Int8:
      return integer_kernel<int8_t, uint8_t>(key.reduction);
    case DataType::UInt8:
      return integer_kernel<uint8_t, uint8_t>(key.reduction);
    case DataType::Int32:
      return integer_kernel<int32_t, uint32_t>(key.reduction);
    case DataType::Int64:
      return integer_kernel<int64_t, uint64_t>(key.reduction);
    case DataType::Bool:
      return bit_kernel<uint8_t>(key.reduction);
  }
  return nullptr;
}

}  // namespace
}  // namespace lockstep::shm
