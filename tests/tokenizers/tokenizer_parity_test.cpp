// Ids equal to those of Hugging Face tokenizers; golden/make_tokenizers.py wrote theirs.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/text/utf8.h"
#include "tokenizers/awkward_text.h"
#include "tokenizers/bert_words.h"
#include "tokenizers/byte_level.h"
#include "tokenizers/text_normalizer.h"
#include "tokenizers/tokenizer_support.h"

namespace lockstep::test {
namespace {

using nlohmann::json;
using Step = tokenizers::TextNormalizer::Step;

const std::vector<std::string> kNames = {"uncased", "cased",    "bpe",    "added",
                                         "steps",   "composed", "roberta"};

// The first three come from the files that their models have, the others from a tokenizer.json.
Tokenizer load(const std::string& name) {
  const bool has_folder = name == "uncased" || name == "cased" || name == "bpe";
  return has_folder ? load_tokenizer(tokenizer_golden(name))
                    : load_described(described_tokenizer(name));
}

TEST(TokenizerParity, ReadableCasesHaveTheSameIdsTypesAndText) {
  for (const std::string& name : kNames) {
    const Tokenizer tokenizers[] = {load(name), load_described(described_tokenizer(name))};
    for (const json& example : tokenizer_cases().at("cases")) {
      if (example.at("tokenizer") != name) {
        continue;
      }
      const auto text = example.at("text").get<std::string>();
      EncodeOptions options{.add_special_tokens = example.at("special"),
                            .max_length = example.at("max_length")};
      std::string pair;
      if (!example.at("pair").is_null()) {
        pair = example.at("pair").get<std::string>();
        options.pair = pair;
      }
      for (const Tokenizer& tokenizer : tokenizers) {
        const Encoding encoding = tokenizer.encode_with_types(text, options);
        EXPECT_EQ(encoding.ids, example.at("ids").get<std::vector<int32_t>>())
            << name << ": " << text << " and " << pair << ", at most " << options.max_length;
        EXPECT_EQ(encoding.type_ids, example.at("type_ids").get<std::vector<int32_t>>())
            << name << ": " << text << " and " << pair;
        EXPECT_EQ(tokenizer.decode(encoding.ids), example.at("decoded").get<std::string>())
            << name << ": " << text;
      }
    }
  }
}

TEST(TokenizerParity, AwkwardTextsHaveTheSameIdsAndDecodeToTheSame) {
  const std::vector<std::string> lines = golden_lines("hashes.txt");
  ASSERT_EQ(lines.size() * 10, kNumAwkwardTexts);
  std::vector<Tokenizer> tokenizers;
  for (const std::string& name : kNames) {
    tokenizers.push_back(load(name));
  }
  for (size_t group = 0; group < lines.size(); ++group) {
    std::string line;
    for (const Tokenizer& tokenizer : tokenizers) {
      GoldenHash ids;
      GoldenHash decoded;
      for (uint64_t i = 0; i < 10; ++i) {
        const std::vector<int32_t> encoded = tokenizer.encode(awkward_text(group * 10 + i));
        ids.add_ids(encoded);
        decoded.add(tokenizer.decode(encoded, {.skip_special_tokens = false}) + "\xff");
      }
      line += fmt::format("{}{} {}", line.empty() ? "" : " ", ids.text(), decoded.text());
    }
    ASSERT_EQ(line, lines[group]) << "texts " << group * 10 << " to " << group * 10 + 9;
  }
}

// --- every code point
// ------------------------------------------------------------------------------

std::vector<tokenizers::TextNormalizer> all_normalizers() {
  const std::vector<std::vector<Step>> steps = {
      {Step::Clean, Step::SpaceChinese, Step::StripAccents, Step::Lowercase},
      {Step::Clean, Step::SpaceChinese},
      {Step::Clean, Step::SpaceChinese, Step::Lowercase},
      {Step::Decompose},
      {Step::Compose},
      {Step::StripMarks},
      {Step::Lowercase}};
  std::vector<tokenizers::TextNormalizer> normalizers;
  for (const std::vector<Step>& list : steps) {
    tokenizers::TextNormalizer& normalizer = normalizers.emplace_back();
    for (const Step step : list) {
      normalizer.add(step);
    }
  }
  return normalizers;
}

// Where a word begins and ends, in code points.
void add_place(std::vector<int32_t>& places, std::string_view text, std::string_view word) {
  const auto begin = static_cast<size_t>(word.data() - text.data());
  places.push_back(static_cast<int32_t>(base::count_code_points(text.substr(0, begin))));
  places.push_back(
      static_cast<int32_t>(base::count_code_points(text.substr(0, begin + word.size()))));
}

std::vector<int32_t> places_of_words(std::string_view text) {
  std::vector<int32_t> places;
  tokenizers::for_each_bert_word(text,
                                 [&](std::string_view word) { add_place(places, text, word); });
  return places;
}

std::vector<int32_t> places_of_pieces(std::string_view text) {
  std::vector<int32_t> places;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at != end;) {
    const char* const begin = at;
    at = tokenizers::end_of_piece(at, end);
    add_place(places, text, {begin, static_cast<size_t>(at - begin)});
  }
  return places;
}

TEST(TokenizerParity, EveryCodePointIsNormalizedAndCutAlike) {
  const std::vector<tokenizers::TextNormalizer> normalizers = all_normalizers();
  const std::vector<std::string> lines = golden_lines("points.txt");
  constexpr char32_t kPerLine = 2048;
  ASSERT_EQ(lines.size() * kPerLine, 0x110000u);
  std::string normalized;
  for (char32_t line = 0; line < lines.size(); ++line) {
    std::vector<GoldenHash> hashes(normalizers.size() + 2);
    for (char32_t point = line * kPerLine; point < (line + 1) * kPerLine; ++point) {
      if (point >= 0xD800 && point < 0xE000) {
        continue;
      }
      std::string letter;
      base::append_utf8(letter, point);
      const std::string text = fmt::format("a{}\u0300b {}1", letter, letter);
      for (size_t i = 0; i < normalizers.size(); ++i) {
        normalizers[i].apply(text, normalized);
        hashes[i].add(normalized + "\xff");
      }
      hashes[normalizers.size()].add_ids(places_of_words(text));
      hashes[normalizers.size() + 1].add_ids(places_of_pieces(text));
    }
    std::vector<std::string> columns;
    for (const GoldenHash& hash : hashes) {
      columns.push_back(hash.text());
    }
    ASSERT_EQ(fmt::format("{}", fmt::join(columns, " ")), lines[line])
        << "code points from " << line * kPerLine;
  }
}

}  // namespace
}  // namespace lockstep::test
