#pragma once

// What the in-host collectives compute on: element types and reductions, without libtorch.

#include <cstddef>
#include <cstdint>

namespace lockstep::shm {

enum class DataType : uint8_t {
  Float32,
  Float64,
  Float16,
  BFloat16,
  Int8,
  UInt8,
  Int32,
  Int64,
  Bool
};

// Average is a Sum and one division at the end. BitAnd and BitOr are for integers and Bool (bytes
// of 0 and 1), the others for all but Bool; Average for floating types only.
enum class Reduction : uint8_t { Sum, Average, Min, Max, Product, BitAnd, BitOr };

constexpr size_t element_bytes(DataType type) {
  switch (type) {
    case DataType::Float64:
    case DataType::Int64:
      return 8;
    case DataType::Float32:
    case DataType::Int32:
      return 4;
    case DataType::Float16:
    case DataType::BFloat16:
      return 2;
    case DataType::Int8:
    case DataType::UInt8:
    case DataType::Bool:
      return 1;
  }
  return 0;
}

constexpr bool is_half(DataType type) {
  return type == DataType::Float16 || type == DataType::BFloat16;
}

// What is done with partial results: an Average is divided at the very end.
constexpr Reduction undivided(Reduction reduction) {
  return reduction == Reduction::Average ? Reduction::Sum : reduction;
}

// The type in which partial results are held before they are rounded once at the end: float32 for
// sums of 16 bits. (The least or greatest of numbers is one of them and needs no rounding.)
constexpr DataType accumulator_of(DataType type, Reduction reduction) {
  const bool is_sum = reduction == Reduction::Sum || reduction == Reduction::Average;
  return is_half(type) && is_sum ? DataType::Float32 : type;
}

}  // namespace lockstep::shm
