#pragma once

// One function per reader, for any bytes at all: it returns, whatever they are. What a reader may
// throw (FormatError) is caught; anything else, a crash or a hang is a finding. A fuzzer calls
// these; fuzz_test.cpp does a little of its work.

#include <string_view>

namespace lockstep::test {

void fuzz_safetensors(std::string_view bytes);
void fuzz_sharded_index(std::string_view bytes);
void fuzz_zip(std::string_view bytes);
void fuzz_npy(std::string_view bytes);
void fuzz_npz(std::string_view bytes);
void fuzz_tokens(std::string_view bytes);
void fuzz_pickle(std::string_view bytes);
void fuzz_torch(std::string_view bytes);
void fuzz_weight_file(std::string_view bytes);

}  // namespace lockstep::test
