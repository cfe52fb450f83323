#pragma once

// The numbers in weight files are little-endian, whatever the machine is.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::formats {

// The caller has checked that the bytes are there.
template <typename Number>
Number number_at(std::string_view bytes, size_t offset) {
  uint64_t number = 0;
  for (size_t i = sizeof(Number); i-- > 0;) {
    number = number << 8 | static_cast<unsigned char>(bytes[offset + i]);
  }
  return static_cast<Number>(number);
}

template <typename Number>
void append_number(std::string& bytes, Number number) {
  for (size_t i = 0; i < sizeof(Number); ++i) {
    bytes += static_cast<char>(static_cast<uint64_t>(number) >> (8 * i));
  }
}

}  // namespace lockstep::formats
