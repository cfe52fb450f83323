#include "formats/dtype.h"

#include <array>

namespace lockstep::formats {

namespace {

struct Row {
  DType dtype;
  int bits;
  std::string_view name;
  std::string_view torch_name;
  std::string_view storage_class;
  bool in_safetensors = true;
};

// In the order of the enumerators.
constexpr std::array kRows{
    Row{DType::Bool, 8, "BOOL", "bool", "BoolStorage"},
    Row{DType::F4, 4, "F4", "", ""},
    Row{DType::F6E2M3, 6, "F6_E2M3", "", ""},
    Row{DType::F6E3M2, 6, "F6_E3M2", "", ""},
    Row{DType::U8, 8, "U8", "uint8", "ByteStorage"},
    Row{DType::I8, 8, "I8", "int8", "CharStorage"},
    Row{DType::F8E5M2, 8, "F8_E5M2", "float8_e5m2", ""},
    Row{DType::F8E4M3, 8, "F8_E4M3", "float8_e4m3fn", ""},
    Row{DType::F8E8M0, 8, "F8_E8M0", "float8_e8m0fnu", ""},
    Row{DType::F8E4M3Fnuz, 8, "F8_E4M3FNUZ", "float8_e4m3fnuz", ""},
    Row{DType::F8E5M2Fnuz, 8, "F8_E5M2FNUZ", "float8_e5m2fnuz", ""},
    Row{DType::I16, 16, "I16", "int16", "ShortStorage"},
    Row{DType::U16, 16, "U16", "uint16", ""},
    Row{DType::F16, 16, "F16", "float16", "HalfStorage"},
    Row{DType::BF16, 16, "BF16", "bfloat16", "BFloat16Storage"},
    Row{DType::I32, 32, "I32", "int32", "IntStorage"},
    Row{DType::U32, 32, "U32", "uint32", ""},
    Row{DType::F32, 32, "F32", "float32", "FloatStorage"},
    Row{DType::C64, 64, "C64", "complex64", "ComplexFloatStorage"},
    Row{DType::F64, 64, "F64", "float64", "DoubleStorage"},
    Row{DType::I64, 64, "I64", "int64", "LongStorage"},
    Row{DType::U64, 64, "U64", "uint64", ""},
    Row{DType::C32, 32, "C32", "complex32", "", false},
    Row{DType::C128, 128, "C128", "complex128", "ComplexDoubleStorage", false},
};

constexpr bool rows_are_in_order() {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (static_cast<size_t>(kRows[i].dtype) != i) {
      return false;
    }
  }
  return true;
}
static_assert(rows_are_in_order());

const Row& row_of(DType dtype) {
  return kRows.at(static_cast<size_t>(dtype));
}

std::optional<DType> find(std::string_view word, std::string_view Row::*column) {
  for (const Row& row : kRows) {
    if (!word.empty() && row.*column == word) {
      return row.dtype;
    }
  }
  return std::nullopt;
}

}  // namespace

int bits_of(DType dtype) {
  return row_of(dtype).bits;
}

std::string_view name_of(DType dtype) {
  return row_of(dtype).name;
}

std::string_view torch_name_of(DType dtype) {
  return row_of(dtype).torch_name;
}

std::string_view storage_class_of(DType dtype) {
  return row_of(dtype).storage_class;
}

std::optional<DType> dtype_of_safetensors(std::string_view name) {
  const std::optional<DType> dtype = find(name, &Row::name);
  return dtype && row_of(*dtype).in_safetensors ? dtype : std::nullopt;
}

std::optional<DType> dtype_of_torch(std::string_view name) {
  return find(name, &Row::torch_name);
}

std::optional<DType> dtype_of_storage_class(std::string_view name) {
  return find(name, &Row::storage_class);
}

}  // namespace lockstep::formats
