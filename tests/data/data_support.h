#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::test {

// A tokenizer of tests/data/golden/tokenizers: "bpe", "cased" or "uncased".
std::string golden_tokenizer(const std::string& name);

// Every id of a token file.
std::vector<int64_t> all_ids(const std::string& path);

}  // namespace lockstep::test
