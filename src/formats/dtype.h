#pragma once

// Element types that weight files hold: all of safetensors', and those that only torch has.

#include <cstdint>
#include <optional>
#include <string_view>

namespace lockstep::formats {

enum class DType : uint8_t {
  Bool,
  F4,
  F6E2M3,
  F6E3M2,
  U8,
  I8,
  F8E5M2,
  F8E4M3,
  F8E8M0,
  F8E4M3Fnuz,
  F8E5M2Fnuz,
  I16,
  U16,
  F16,
  BF16,
  I32,
  U32,
  F32,
  C64,
  F64,
  I64,
  U64,
  C32,   // two F16; torch only
  C128,  // two F64; torch only
};

// Of one element. Fewer than 8 for the packed types: only whole bytes of them can be stored.
int bits_of(DType dtype);

// "F32"; for the types that safetensors lacks a name of the same kind, "C128".
std::string_view name_of(DType dtype);

// "float32", as in `torch.float32`; empty for F4 and F6, which torch packs in ways of its own.
std::string_view torch_name_of(DType dtype);

// The class of module `torch` whose pickled name stands for a storage of this type,
// "FloatStorage"; empty where torch writes an untyped storage and the type beside it.
std::string_view storage_class_of(DType dtype);

// The inverses; nothing for a word that is no such name.
std::optional<DType> dtype_of_safetensors(std::string_view name);
std::optional<DType> dtype_of_torch(std::string_view name);
std::optional<DType> dtype_of_storage_class(std::string_view name);

}  // namespace lockstep::formats
