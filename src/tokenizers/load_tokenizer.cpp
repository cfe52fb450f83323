#include <algorithm>
#include <filesystem>
#include <utility>

#include <lockstep/base/error.h>
#include <lockstep/tokenizers/tokenizer.h>

#include "base/unique_fd.h"
#include "tokenizers/json_file.h"
#include "tokenizers/tokenizer_build.h"
#include "tokenizers/tokenizer_json.h"

namespace lockstep {

namespace {

namespace fs = std::filesystem;

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// Calls `function(line, number)` for each line, without its end; numbers begin with 1.
template <typename Function>
void for_each_line(const std::string& path, const std::string& text, Function function) {
  std::string_view rest = text;
  for (size_t number = 1; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    const std::string place = fmt::format("{}:{}", path, number);
    if (line.find('\r') != std::string_view::npos) {
      throw FormatError("{}: a carriage return inside the line; which lines are meant?", place);
    }
    function(line, number, place);
  }
}

tokenizers::Vocabulary read_vocab_txt(const std::string& path) {
  tokenizers::Vocabulary vocabulary;
  for_each_line(path, base::read_file(path, tokenizers::kMaxVocabularyBytes),
                [&](std::string_view line, size_t number, const std::string& place) {
                  if (line.empty()) {
                    throw FormatError(
                        "{}: the line is empty, so no token has the id {}; put its token back, or "
                        "one that no text holds (\"[unused-{}]\"). Without the line every id "
                        "behind it would be another",
                        place, number - 1, number - 1);
                  }
                  vocabulary.add(line, static_cast<int64_t>(number) - 1, place);
                });
  return vocabulary;
}

std::vector<tokenizers::Merge> read_merges(const std::string& path) {
  std::vector<tokenizers::Merge> merges;
  for_each_line(path, base::read_file(path, tokenizers::kMaxVocabularyBytes),
                [&](std::string_view line, size_t number, const std::string& place) {
                  if (line.starts_with("#version")) {
                    return;
                  }
                  if (line.empty()) {  // merges are ranked by their order alone
                    throw FormatError("{}: the line is empty; delete it", place);
                  }
                  const size_t blank = line.find(' ');
                  if (blank == std::string_view::npos || blank == 0 || blank + 1 == line.size() ||
                      line.find(' ', blank + 1) != std::string_view::npos) {
                    throw FormatError("{}: {} is not two tokens with a blank between them", place,
                                      tokenizers::in_quotes(line));
                  }
                  if (merges.size() == static_cast<size_t>(tokenizers::kMaxTokens)) {
                    throw FormatError("{}: there are more than {} merges", place,
                                      tokenizers::kMaxTokens);
                  }
                  merges.push_back({.left = std::string(line.substr(0, blank)),
                                    .right = std::string(line.substr(blank + 1)),
                                    .line = number});
                });
  return merges;
}

// "[CLS]", or an object that has it as "content".
std::string token_name(const tokenizers::Json& config, const char* name, const std::string& place,
                       const std::string& fallback) {
  const tokenizers::Json& value = tokenizers::field(config, name);
  return value.is_object() ? tokenizers::text_field(value, "content", place)
                           : tokenizers::text_field(config, name, place, fallback);
}

tokenizers::SpecialNames read_names(const tokenizers::Json& config, const std::string& place,
                                    const tokenizers::SpecialNames& usual) {
  return {.unknown = token_name(config, "unk_token", place, usual.unknown),
          .padding = token_name(config, "pad_token", place, usual.padding),
          .classifier = token_name(config, "cls_token", place, usual.classifier),
          .separator = token_name(config, "sep_token", place, usual.separator),
          .mask = token_name(config, "mask_token", place, usual.mask),
          .begin = token_name(config, "bos_token", place, usual.begin),
          .end = token_name(config, "eos_token", place, usual.end)};
}

// tokenizer_config.json beside a vocabulary; null if there is none.
struct Config {
  std::string path;
  tokenizers::Json json;
};

Config read_config(const fs::path& folder) {
  const fs::path path = folder / "tokenizer_config.json";
  if (!is_file(path)) {
    return {.path = path};
  }
  return {.path = path, .json = tokenizers::read_json_file(path)};
}

void add_configured_tokens(const Config& config, tokenizers::CommonSettings& common) {
  for (const auto& [id, token] : tokenizers::field(config.json, "added_tokens_decoder").items()) {
    if (id.empty() || id.size() > 9 || id.find_first_not_of("0123456789") != std::string::npos) {
      throw FormatError("{}: added_tokens_decoder: {} is no id", config.path,
                        tokenizers::in_quotes(id));
    }
    common.added.push_back(tokenizers::parse_added_token(token, std::stoll(id), config.path));
  }
  tokenizers::add_special_tokens(common);
}

void refuse_old_added_tokens(const fs::path& folder) {
  if (const fs::path path = folder / "added_tokens.json"; is_file(path)) {
    throw FormatError(
        "{}: added tokens are read from a tokenizer.json only; transformers'"
        " save_pretrained writes one",
        path.string());
  }
}

tokenizers::PartsPointer load_vocab_txt(const fs::path& path) {
  refuse_old_added_tokens(path.parent_path());
  const Config config = read_config(path.parent_path());
  tokenizers::CommonSettings common{.place = path, .vocabulary = read_vocab_txt(path)};
  common.names = read_names(config.json, config.path, tokenizers::SpecialNames::bert());
  add_configured_tokens(config, common);
  common.around = tokenizers::bert_template(common);
  tokenizers::WordPieceSettings settings{.unknown = common.names.unknown};
  const bool lowercase = tokenizers::bool_field(config.json, "do_lower_case", config.path, true);
  tokenizers::add_bert_normalizer(
      settings.normalizer, {.split_chinese = tokenizers::bool_field(
                                config.json, "tokenize_chinese_chars", config.path, true),
                            .strip_accents = tokenizers::bool_field(config.json, "strip_accents",
                                                                    config.path, lowercase),
                            .lowercase = lowercase});
  return tokenizers::build(std::move(common), std::move(settings));
}

tokenizers::PartsPointer load_vocab_json(const fs::path& path, const tokenizers::Json& json) {
  const fs::path merges = path.parent_path() / "merges.txt";
  if (!is_file(merges)) {
    throw FormatError(
        "{}: it is neither a tokenizer.json, which has a \"model\", nor is there a "
        "merges.txt beside it",
        path.string());
  }
  refuse_old_added_tokens(path.parent_path());
  const Config config = read_config(path.parent_path());
  tokenizers::CommonSettings common{.place = path,
                                    .vocabulary = tokenizers::parse_vocabulary(json, path)};
  common.names = read_names(config.json, config.path, tokenizers::SpecialNames::gpt2());
  add_configured_tokens(config, common);
  tokenizers::BytePairSettings settings{.merges = read_merges(merges),
                                        .merges_place = merges,
                                        .add_prefix_space = tokenizers::bool_field(
                                            config.json, "add_prefix_space", config.path, false)};
  return tokenizers::build(std::move(common), std::move(settings));
}

tokenizers::PartsPointer load_json(const fs::path& path) {
  const tokenizers::Json json = tokenizers::read_json_file(path);
  if (!tokenizers::field(json, "model").is_object()) {
    return load_vocab_json(path, json);
  }
  const Config config = read_config(path.parent_path());
  const tokenizers::SpecialNames usual =
      tokenizers::field(tokenizers::field(json, "model"), "type") == "BPE"
          ? tokenizers::SpecialNames::gpt2()
          : tokenizers::SpecialNames::bert();
  return tokenizers::parse_tokenizer_json(json, path, read_names(config.json, config.path, usual));
}

}  // namespace

Tokenizer load_tokenizer(const std::string& path) {
  fs::path file = path;
  if (fs::is_directory(file)) {
    const auto has = [&](const char* name) { return is_file(fs::path(path) / name); };
    const char* const name = has("tokenizer.json") ? "tokenizer.json"
                             : has("vocab.txt")    ? "vocab.txt"
                             : has("vocab.json")   ? "vocab.json"
                                                   : nullptr;
    if (name == nullptr) {
      throw IoError("{}: the folder has no tokenizer.json, vocab.txt or vocab.json", path);
    }
    file /= name;
  }
  return Tokenizer(file.extension() == ".txt" ? load_vocab_txt(file) : load_json(file));
}

}  // namespace lockstep
