#include "tokenizers/tokenizer_build.h"

#include <algorithm>
#include <utility>

#include <lockstep/base/error.h>

namespace lockstep::tokenizers {

namespace {

SpecialIds ids_of(const Vocabulary& vocabulary, const SpecialNames& names) {
  const auto id = [&](const std::string& name) {
    return name.empty() ? std::nullopt : vocabulary.id_of(name);
  };
  return {.unknown = id(names.unknown),
          .padding = id(names.padding),
          .classifier = id(names.classifier),
          .separator = id(names.separator),
          .mask = id(names.mask),
          .begin = id(names.begin),
          .end = id(names.end)};
}

void add_to(Vocabulary& vocabulary, const AddedToken& token, const std::string& place) {
  const auto known = vocabulary.id_of(token.content);
  if (known && *known != token.id) {
    throw FormatError("{}: the added token {} has the id {} here and {} in the vocabulary", place,
                      in_quotes(token.content), token.id, *known);
  }
  if (!known) {
    vocabulary.add(token.content, token.id, place);
  }
}

// `make_model(vocabulary, settings)` sees the model's own tokens: an added one is never found as a
// part of a word.
template <typename Settings, typename MakeModel>
PartsPointer build_with(CommonSettings common, Settings settings, MakeModel make_model) {
  auto parts = std::make_shared<TokenizerParts>();
  parts->normalizer = settings.normalizer;
  if (std::any_of(common.added.begin(), common.added.end(),
                  [](const AddedToken& token) { return token.normalized; })) {
    settings.normalizer = {};  // the text is normalized before these are searched
  }
  parts->model = make_model(common.vocabulary, settings);
  parts->vocabulary = std::move(common.vocabulary);
  for (const AddedToken& token : common.added) {
    add_to(parts->vocabulary, token, common.place);
  }
  parts->added = AddedTokens(std::move(common.added), parts->normalizer);
  parts->around = std::move(common.around);
  parts->special = ids_of(parts->vocabulary, common.names);
  return parts;
}

Vocabulary vocabulary_of(const std::vector<std::string>& tokens) {
  Vocabulary vocabulary;
  for (size_t i = 0; i < tokens.size(); ++i) {
    vocabulary.add(tokens[i], static_cast<int64_t>(i), "vocabulary");
  }
  return vocabulary;
}

PartsPointer from_options(const WordPieceOptions& options) {
  CommonSettings common{.place = "vocabulary",
                        .vocabulary = vocabulary_of(options.vocabulary),
                        .names = SpecialNames::bert()};
  add_special_tokens(common);
  common.around = bert_template(common);
  WordPieceSettings settings;
  add_bert_normalizer(settings.normalizer, {.split_chinese = options.split_chinese,
                                            .strip_accents = options.strip_accents,
                                            .lowercase = options.lowercase});
  return build(std::move(common), std::move(settings));
}

PartsPointer from_options(const BytePairOptions& options) {
  CommonSettings common{.place = "vocabulary",
                        .vocabulary = vocabulary_of(options.vocabulary),
                        .names = SpecialNames::gpt2()};
  add_special_tokens(common);
  BytePairSettings settings{.merges_place = "merges", .add_prefix_space = options.add_prefix_space};
  for (const auto& [left, right] : options.merges) {
    settings.merges.push_back({.left = left, .right = right});
  }
  return build(std::move(common), std::move(settings));
}

}  // namespace

SpecialNames SpecialNames::bert() {
  return {.unknown = "[UNK]",
          .padding = "[PAD]",
          .classifier = "[CLS]",
          .separator = "[SEP]",
          .mask = "[MASK]"};
}

SpecialNames SpecialNames::gpt2() {
  return {.unknown = "<|endoftext|>", .begin = "<|endoftext|>", .end = "<|endoftext|>"};
}

PartsPointer build(CommonSettings common, WordPieceSettings settings) {
  const std::string place = common.place;
  return build_with(std::move(common), std::move(settings),
                    [&](const Vocabulary& vocabulary, const WordPieceSettings& left) {
                      return std::make_unique<WordPiece>(vocabulary, left, place);
                    });
}

PartsPointer build(CommonSettings common, BytePairSettings settings) {
  return build_with(std::move(common), std::move(settings),
                    [](const Vocabulary& vocabulary, const BytePairSettings& left) {
                      return std::make_unique<BytePair>(vocabulary, left);
                    });
}

void add_special_tokens(CommonSettings& common) {
  const SpecialNames& names = common.names;
  for (const std::string* name : {&names.padding, &names.unknown, &names.classifier,
                                  &names.separator, &names.mask, &names.begin, &names.end}) {
    const bool is_listed =
        std::any_of(common.added.begin(), common.added.end(),
                    [&](const AddedToken& token) { return token.content == *name; });
    const auto id = common.vocabulary.id_of(*name);
    if (!name->empty() && !is_listed && id) {
      common.added.push_back({.content = *name, .id = *id});
    }
  }
}

void add_bert_normalizer(TextNormalizer& normalizer, const BertNormalizerOptions& options) {
  using Step = TextNormalizer::Step;
  if (options.clean) {
    normalizer.add(Step::Clean);
  }
  if (options.split_chinese) {
    normalizer.add(Step::SpaceChinese);
  }
  if (options.strip_accents.value_or(options.lowercase)) {
    normalizer.add(Step::StripAccents);
  }
  if (options.lowercase) {
    normalizer.add(Step::Lowercase);
  }
}

TokenTemplate bert_template(const CommonSettings& common) {
  const auto classifier = common.vocabulary.id_of(common.names.classifier);
  const auto separator = common.vocabulary.id_of(common.names.separator);
  return classifier && separator ? TokenTemplate::bert(*classifier, *separator) : TokenTemplate{};
}

}  // namespace lockstep::tokenizers

namespace lockstep {

WordPieceTokenizer::WordPieceTokenizer(const WordPieceOptions& options)
    : Tokenizer(tokenizers::from_options(options)) {}

BytePairTokenizer::BytePairTokenizer(const BytePairOptions& options)
    : Tokenizer(tokenizers::from_options(options)) {}

}  // namespace lockstep
