#include "tokenizers/tokenizer_support.h"

#include <fstream>
#include <sstream>

#include <fmt/format.h>

#include "base/unique_fd.h"
#include "support/paths.h"
#include "support/temp_folder.h"

namespace lockstep::test {

using nlohmann::json;

std::string tokenizer_golden(const std::string& name) {
  return testing_support::in_tree("tests/tokenizers/golden/") + name;
}

std::vector<std::string> golden_lines(const std::string& name) {
  std::ifstream file(tokenizer_golden(name));
  std::vector<std::string> lines;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    lines.push_back(line);
  }
  return lines;
}

const json& tokenizer_cases() {
  static const json cases = json::parse(base::read_file(tokenizer_golden("cases.json")));
  return cases;
}

json described_tokenizer(const std::string& name) {
  json description = tokenizer_cases().at("tokenizers").at(name);
  json& model = description.at("model");
  if (model.at("type") == "BPE") {
    model["vocab"] = json::parse(base::read_file(tokenizer_golden("bpe/vocab.json")));
    model["merges"] = golden_lines("bpe/merges.txt");
    return description;
  }
  const bool is_uncased = name == "uncased" || name == "added";
  std::istringstream vocabulary(
      base::read_file(tokenizer_golden(is_uncased ? "uncased/vocab.txt" : "cased/vocab.txt")));
  std::string token;
  for (int id = 0; std::getline(vocabulary, token); ++id) {
    model["vocab"][token] = id;
  }
  return description;
}

Tokenizer load_described(const json& description) {
  const TempFolder folder;
  return load_tokenizer(folder.file("tokenizer.json", description.dump()));
}

void GoldenHash::add(std::string_view bytes) {
  for (const char c : bytes) {
    value_ = (value_ ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  }
}

void GoldenHash::add_ids(std::span<const int32_t> ids) {
  add({reinterpret_cast<const char*>(ids.data()), ids.size_bytes()});
  add("\xff\xff\xff\xff");
}

std::string GoldenHash::text() const {
  return fmt::format("{:08x}", static_cast<uint32_t>(value_ >> 32 ^ value_));
}

}  // namespace lockstep::test
