#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::test {

// A tokenizer of tests/tokenizers/golden: "bpe", "cased" or "uncased".
std::string golden_tokenizer(const std::string& name);

// Every id of a token file.
std::vector<int64_t> all_ids(const std::string& path);

struct TarEntry {
  std::string name;
  std::string content;
  char type = '0';  // of the header: '2' is a link, 'x' PAX's extended header
};

// A tar of files. A name that ends with a slash is a folder.
std::string tar_bytes(const std::vector<TarEntry>& files);

// A line of PAX's extended header: "22 path=caf\xc3\xa9/1.jpg\n".
std::string pax_record(const std::string& key, const std::string& value);

}  // namespace lockstep::test
