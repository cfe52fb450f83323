#include "tokenizers/tokenizer_json.h"

#include <utility>

#include <lockstep/base/error.h>

namespace lockstep::tokenizers {

namespace {

using Step = TextNormalizer::Step;
using Part = TokenTemplate::Part;

constexpr int kMaxNormalizers = 16;

std::string type_of(const Json& json, const std::string& place) {
  return text_field(json, "type", place);
}

// Every part of a file that is of another kind than the known ones ends here.
[[noreturn]] void refuse_kind(const std::string& file, const char* part, const std::string& kind,
                              const char* known) {
  throw FormatError("{}: the {} {} is not known; {}", file, part, in_quotes(kind), known);
}

void add_normalizer(const Json& json, const std::string& file, TextNormalizer& normalizer,
                    int& budget) {
  if (json.is_null()) {
    return;
  }
  const std::string type = type_of(json, file + ": normalizer");
  if (--budget < 0) {
    throw FormatError("{}: it has more than {} normalizers", file, kMaxNormalizers);
  }
  if (type == "Sequence") {
    for (const Json& inner : field(json, "normalizers")) {
      add_normalizer(inner, file, normalizer, budget);
    }
  } else if (type == "BertNormalizer") {
    const std::string place = file + ": BertNormalizer";
    const bool lowercase = bool_field(json, "lowercase", place, true);
    add_bert_normalizer(normalizer,
                        {.clean = bool_field(json, "clean_text", place, true),
                         .split_chinese = bool_field(json, "handle_chinese_chars", place, true),
                         .strip_accents = bool_field(json, "strip_accents", place, lowercase),
                         .lowercase = lowercase});
  } else if (type == "Lowercase") {
    normalizer.add(Step::Lowercase);
  } else if (type == "NFC") {
    normalizer.add(Step::Compose);
  } else if (type == "NFD") {
    normalizer.add(Step::Decompose);
  } else if (type == "StripAccents") {
    normalizer.add(Step::StripMarks);
  } else {
    refuse_kind(file, "normalizer", type,
                "BertNormalizer, Lowercase, NFC, NFD, StripAccents and a Sequence of them are");
  }
}

Part parse_part(const Json& json, const Json& special, const std::string& place) {
  Part part;
  const Json& sequence = field(json, "Sequence");
  const Json& token = field(json, "SpecialToken");
  const Json& either = sequence.is_null() ? token : sequence;
  const std::string name = text_field(either, "id", place);
  const int64_t type_id = number_field(either, "type_id", place);
  if (type_id < 0 || type_id > INT32_MAX) {
    throw FormatError("{}: the type_id {} of {} is not in [0, 2^31)", place, type_id,
                      in_quotes(name));
  }
  part.type_id = static_cast<int32_t>(type_id);
  if (!sequence.is_null()) {
    if (name != "A" && name != "B") {
      throw FormatError("{}: the sequence {} is neither A nor B", place, in_quotes(name));
    }
    part.what = name == "A" ? Part::What::First : Part::What::Second;
    return part;
  }
  part.what = Part::What::Token;
  const Json& ids = field(field(special, name.c_str()), "ids");
  if (!ids.is_array() || ids.size() != 1 || !ids[0].is_number_unsigned() ||
      ids[0].get<uint64_t>() >= static_cast<uint64_t>(kMaxTokens)) {
    throw FormatError("{}: the special token {} needs a list of one id", place, in_quotes(name));
  }
  part.id = ids[0].get<int32_t>();
  return part;
}

std::vector<Part> parse_template(const Json& json, const char* name, const std::string& file) {
  const std::string place = file + ": TemplateProcessing";
  std::vector<Part> parts;
  for (const Json& part : field(json, name)) {
    parts.push_back(parse_part(part, field(json, "special_tokens"), place));
  }
  return parts;
}

// ["[SEP]", 102]
int32_t parse_named_id(const Json& json, const char* name, const std::string& place) {
  const Json& value = field(json, name);
  if (!value.is_array() || value.size() != 2 || !value[1].is_number_unsigned() ||
      value[1].get<uint64_t>() >= static_cast<uint64_t>(kMaxTokens)) {
    throw FormatError("{}: \"{}\" is not a token and its id", place, name);
  }
  return value[1].get<int32_t>();
}

void set_template(const Json& json, const std::string& file, TokenTemplate& around) {
  if (json.is_null()) {
    return;
  }
  const std::string type = type_of(json, file + ": post_processor");
  if (type == "Sequence") {
    for (const Json& inner : field(json, "processors")) {
      if (inner.is_object() && field(inner, "type") != "Sequence") {
        set_template(inner, file, around);
      }
    }
  } else if (type == "TemplateProcessing") {
    around = {.single = parse_template(json, "single", file),
              .pair = parse_template(json, "pair", file)};
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    const int32_t classifier = parse_named_id(json, "cls", file + ": " + type);
    const int32_t separator = parse_named_id(json, "sep", file + ": " + type);
    around = type == "BertProcessing" ? TokenTemplate::bert(classifier, separator)
                                      : TokenTemplate::roberta(classifier, separator);
  } else if (type != "ByteLevel") {  // which moves offsets, and there are none here
    refuse_kind(file, "post-processor", type,
                "TemplateProcessing, BertProcessing, RobertaProcessing and ByteLevel are");
  }
}

Merge parse_merge(const Json& json, const std::string& file, size_t index) {
  if (json.is_array() && json.size() == 2 && json[0].is_string() && json[1].is_string()) {
    return {.left = json[0].get<std::string>(), .right = json[1].get<std::string>()};
  }
  if (json.is_string()) {
    const auto& text = json.get_ref<const std::string&>();
    const size_t blank = text.find(' ');
    if (blank != std::string::npos && text.find(' ', blank + 1) == std::string::npos) {
      return {.left = text.substr(0, blank), .right = text.substr(blank + 1)};
    }
  }
  throw FormatError("{}: merge {} is {}, not two tokens with a blank between them", file, index,
                    in_quotes(json.dump()));
}

WordPieceSettings parse_word_piece(const Json& json, const std::string& file) {
  const Json& model = field(json, "model");
  WordPieceSettings settings{
      .unknown = text_field(model, "unk_token", file + ": model", "[UNK]"),
      .continuation = text_field(model, "continuing_subword_prefix", file + ": model", "##")};
  if (!field(model, "max_input_chars_per_word").is_null()) {
    const int64_t points = number_field(model, "max_input_chars_per_word", file + ": model");
    if (points < 0) {
      throw FormatError("{}: model: max_input_chars_per_word {} is negative", file, points);
    }
    settings.max_word_points = static_cast<size_t>(points);
  }
  const Json& before = field(json, "pre_tokenizer");
  if (field(before, "type") != "BertPreTokenizer") {
    refuse_kind(file, "pre-tokenizer", before.is_null() ? "none" : type_of(before, file),
                "with WordPiece only BertPreTokenizer is");
  }
  const Json& decoder = field(json, "decoder");
  settings.has_decoder = !decoder.is_null();
  if (settings.has_decoder) {
    if (const std::string type = type_of(decoder, file + ": decoder"); type != "WordPiece") {
      refuse_kind(file, "decoder", type, "with the model WordPiece only WordPiece is");
    }
    settings.decoder_prefix = text_field(decoder, "prefix", file + ": decoder", "##");
    settings.cleans_decoded = bool_field(decoder, "cleanup", file + ": decoder", true);
  }
  return settings;
}

// What a BPE model can have besides its merges, and GPT-2's relatives have not.
void refuse_other_bpe(const Json& model, const Json& before, const Json& decoder,
                      const std::string& file) {
  const std::string place = file + ": model";
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const std::string text = text_field(model, name, place, ""); !text.empty()) {
      throw FormatError("{}: a BPE model with {} {} is not known; GPT-2's has none", file, name,
                        in_quotes(text));
    }
  }
  for (const char* name : {"byte_fallback", "ignore_merges", "fuse_unk"}) {
    if (bool_field(model, name, place, false)) {
      throw FormatError("{}: a BPE model with {} is not known; GPT-2's has it off", file, name);
    }
  }
  if (const Json& dropout = field(model, "dropout"); !dropout.is_null() && dropout != 0) {
    throw FormatError("{}: a BPE model with dropout gives other ids each time and is not known",
                      file);
  }
  if (field(before, "type") != "ByteLevel") {
    refuse_kind(file, "pre-tokenizer", before.is_null() ? "none" : type_of(before, file),
                "with BPE only ByteLevel, as in GPT-2, is");
  }
  if (!bool_field(before, "use_regex", file + ": pre_tokenizer", true)) {
    throw FormatError("{}: a ByteLevel pre-tokenizer without its expression is not known", file);
  }
  if (!decoder.is_null() && field(decoder, "type") != "ByteLevel") {
    refuse_kind(file, "decoder", type_of(decoder, file + ": decoder"),
                "with the model BPE only ByteLevel is");
  }
}

BytePairSettings parse_byte_pair(const Json& json, const std::string& file) {
  const Json& model = field(json, "model");
  const Json& before = field(json, "pre_tokenizer");
  refuse_other_bpe(model, before, field(json, "decoder"), file);
  BytePairSettings settings{
      .merges_place = file,
      .unknown = text_field(model, "unk_token", file + ": model", ""),
      .add_prefix_space = bool_field(before, "add_prefix_space", file + ": pre_tokenizer", true),
      .has_decoder = !field(json, "decoder").is_null()};
  const Json& merges = field(model, "merges");
  if (!merges.is_array() || merges.size() > static_cast<size_t>(kMaxTokens)) {
    throw FormatError("{}: the model has no list \"merges\" of at most {}", file, kMaxTokens);
  }
  for (const Json& merge : merges) {
    settings.merges.push_back(parse_merge(merge, file, settings.merges.size()));
  }
  return settings;
}

}  // namespace

Vocabulary parse_vocabulary(const Json& json, const std::string& file) {
  if (!json.is_object()) {
    throw FormatError("{}: there is no object of tokens and their ids", file);
  }
  Vocabulary vocabulary;
  for (const auto& [token, id] : json.items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(kMaxTokens)) {
      throw FormatError("{}: the id {} of the token {} is not a whole number in [0, {})", file,
                        in_quotes(id.dump()), in_quotes(token), kMaxTokens);
    }
    vocabulary.add(token, id.get<int64_t>(), file);
  }
  return vocabulary;
}

AddedToken parse_added_token(const Json& json, int64_t id, const std::string& place) {
  AddedToken token{.content = text_field(json, "content", place),
                   .special = bool_field(json, "special", place, false),
                   .normalized = bool_field(json, "normalized", place, true),
                   .single_word = bool_field(json, "single_word", place, false),
                   .lstrip = bool_field(json, "lstrip", place, false),
                   .rstrip = bool_field(json, "rstrip", place, false)};
  if (token.content.empty() || id < 0 || id >= kMaxTokens) {
    throw FormatError(
        "{}: an added token is {} with the id {}; it needs a text and an id in [0, {})", place,
        in_quotes(token.content), id, kMaxTokens);
  }
  token.id = static_cast<int32_t>(id);
  return token;
}

PartsPointer parse_tokenizer_json(const Json& json, const std::string& file,
                                  const std::optional<SpecialNames>& names) {
  const std::string type = text_field(field(json, "model"), "type", file + ": model", "");
  if (type != "WordPiece" && type != "BPE") {
    refuse_kind(file, "model", type, "WordPiece and byte-level BPE are");
  }
  CommonSettings common{.place = file,
                        .vocabulary = parse_vocabulary(field(field(json, "model"), "vocab"), file)};
  common.names = names.value_or(type == "BPE" ? SpecialNames::gpt2() : SpecialNames::bert());
  for (const Json& token : field(json, "added_tokens")) {
    common.added.push_back(
        parse_added_token(token, number_field(token, "id", file + ": added_tokens"), file));
  }
  set_template(field(json, "post_processor"), file, common.around);
  TextNormalizer normalizer;
  int budget = kMaxNormalizers;
  add_normalizer(field(json, "normalizer"), file, normalizer, budget);
  if (type == "WordPiece") {
    WordPieceSettings settings = parse_word_piece(json, file);
    settings.normalizer = std::move(normalizer);
    return build(std::move(common), std::move(settings));
  }
  BytePairSettings settings = parse_byte_pair(json, file);
  settings.normalizer = std::move(normalizer);
  return build(std::move(common), std::move(settings));
}

}  // namespace lockstep::tokenizers
