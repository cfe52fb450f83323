#include <cmath>

#include <c10/util/BFloat16.h>

#include "device/twins/twins.h"

namespace lockstep::device {

float Elements::operator[](int64_t at) const {
  return type_ == LOCKSTEP_FLOAT32 ? static_cast<const float*>(data_)[at]
                                   : static_cast<float>(static_cast<c10::BFloat16*>(data_)[at]);
}

float Elements::set(int64_t at, float value) const {
  if (type_ == LOCKSTEP_FLOAT32) {
    static_cast<float*>(data_)[at] = value;
  } else {
    static_cast<c10::BFloat16*>(data_)[at] = c10::BFloat16(value);
  }
  return (*this)[at];
}

PhiloxWords philox(PhiloxWords counter, uint32_t key_low, uint32_t key_high) {
  for (int round = 0; round < 10; ++round) {
    const uint32_t* c = counter.words;
    const uint64_t a = uint64_t{0xD2511F53u} * c[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * c[2];
    counter = {{static_cast<uint32_t>(b >> 32) ^ c[1] ^ key_low, static_cast<uint32_t>(b),
                static_cast<uint32_t>(a >> 32) ^ c[3] ^ key_high, static_cast<uint32_t>(a)}};
    key_low += 0x9E3779B9u;
    key_high += 0xBB67AE85u;
  }
  return counter;
}

float dropped(const LockstepDropout& dropout, int64_t at, float value) {
  if (dropout.probability <= 0) {
    return value;
  }
  const uint64_t seed = dropout.state[0];
  const uint64_t offset = dropout.state[1];
  const PhiloxWords random =
      philox({{static_cast<uint32_t>(at / 8), dropout.site, static_cast<uint32_t>(offset),
               static_cast<uint32_t>(offset >> 32)}},
             static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  const auto half = static_cast<int>(at % 8);
  const uint32_t bits = random.words[half / 2] >> (half % 2 * 16) & 0xffffu;
  const auto threshold = static_cast<uint32_t>(std::nearbyint(dropout.probability * 65536.0f));
  return bits < threshold ? 0.0f : value * (65536.0f / static_cast<float>(65536 - threshold));
}

void put_sum(float& to, double sum, bool accumulate) {
  to = static_cast<float>(accumulate ? to + sum : sum);
}

}  // namespace lockstep::device
