#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::test {

// A tokenizer of tests/data/golden/tokenizers: "bpe", "cased" or "uncased".
std::string golden_tokenizer(const std::string& name);

// Every id of a token file.
std::vector<int64_t> all_ids(const std::string& path);

// A tar of files: names and contents. A name that ends with a slash is a folder.
std::string tar_bytes(const std::vector<std::pair<std::string, std::string>>& files);

}  // namespace lockstep::test
