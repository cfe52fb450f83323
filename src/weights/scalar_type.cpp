#include "weights/scalar_type.h"

namespace lockstep::weights {

at::ScalarType scalar_type_of(formats::DType dtype) {
  switch (dtype) {
    case formats::DType::Bool:
      return at::kBool;
    case formats::DType::U8:
      return at::kByte;
    case formats::DType::I8:
      return at::kChar;
    case formats::DType::F8E5M2:
      return at::kFloat8_e5m2;
    case formats::DType::F8E4M3:
      return at::kFloat8_e4m3fn;
    case formats::DType::F8E8M0:
      return at::kFloat8_e8m0fnu;
    case formats::DType::F8E4M3Fnuz:
      return at::kFloat8_e4m3fnuz;
    case formats::DType::F8E5M2Fnuz:
      return at::kFloat8_e5m2fnuz;
    case formats::DType::I16:
      return at::kShort;
    case formats::DType::U16:
      return at::kUInt16;
    case formats::DType::F16:
      return at::kHalf;
    case formats::DType::BF16:
      return at::kBFloat16;
    case formats::DType::I32:
      return at::kInt;
    case formats::DType::U32:
      return at::kUInt32;
    case formats::DType::F32:
      return at::kFloat;
    case formats::DType::C64:
      return at::kComplexFloat;
    case formats::DType::F64:
      return at::kDouble;
    case formats::DType::I64:
      return at::kLong;
    case formats::DType::U64:
      return at::kUInt64;
    case formats::DType::C32:
      return at::kComplexHalf;
    case formats::DType::C128:
      return at::kComplexDouble;
    case formats::DType::F4:
    case formats::DType::F6E2M3:
    case formats::DType::F6E3M2:
      break;
  }
  return at::ScalarType::Undefined;
}

}  // namespace lockstep::weights
