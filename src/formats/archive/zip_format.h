#pragma once

// The records of a zip file, field by field (APPNOTE 6.3.3). Reader and writer share the numbers.

#include <cstdint>
#include <string_view>

namespace lockstep::formats::zip {

using std::string_view_literals::operator""sv;

inline constexpr std::string_view kLocalSignature = "PK\x03\x04"sv;
inline constexpr std::string_view kCentralSignature = "PK\x01\x02"sv;
inline constexpr std::string_view kDescriptorSignature = "PK\x07\x08"sv;
inline constexpr std::string_view kEndSignature = "PK\x05\x06"sv;
inline constexpr std::string_view kEnd64Signature = "PK\x06\x06"sv;
inline constexpr std::string_view kLocatorSignature = "PK\x06\x07"sv;

inline constexpr uint64_t kLocalBytes = 30;
inline constexpr uint64_t kCentralBytes = 46;
inline constexpr uint64_t kEndBytes = 22;
inline constexpr uint64_t kEnd64Bytes = 56;
inline constexpr uint64_t kLocatorBytes = 20;

inline constexpr uint16_t kStored = 0;  // methods
inline constexpr uint16_t kDeflated = 8;
inline constexpr uint16_t kFlagEncrypted = 1;
inline constexpr uint16_t kFlagDescriptor = 8;  // local CRC and sizes are 0, they follow the data
inline constexpr uint16_t kFlagUtf8 = 0x800;
inline constexpr uint16_t kExtraZip64 = 1;
inline constexpr uint32_t kIn64 = 0xffffffff;  // the value stands in a ZIP64 field
inline constexpr uint16_t kIn64Short = 0xffff;

}  // namespace lockstep::formats::zip
