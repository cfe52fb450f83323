#include "formats/readers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return lockstep::test::fuzz("safetensors", data, size);
}
