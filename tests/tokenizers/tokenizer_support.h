#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include <lockstep/tokenizers/tokenizer.h>

namespace lockstep::test {

std::string tokenizer_golden(const std::string& name);  // a path

// The lines of a golden file, without its first.
std::vector<std::string> golden_lines(const std::string& name);

// tests/tokenizers/golden/cases.json.
const nlohmann::json& tokenizer_cases();

// The tokenizer that cases.json describes, with its vocabulary, as the text of a tokenizer.json.
nlohmann::json described_tokenizer(const std::string& name);
Tokenizer load_described(const nlohmann::json& description);

// FNV-1a of 64 bits, folded to 32, as make_tokenizers.py computes it.
class GoldenHash {
 public:
  void add(std::string_view bytes);
  void add_ids(std::span<const int32_t> ids);
  std::string text() const;

 private:
  uint64_t value_ = 0xCBF29CE484222325u;
};

// The message of the error, of whatever kind, that `call` throws; "none" without one.
template <typename Call>
std::string refused(Call call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "none";
}

}  // namespace lockstep::test
