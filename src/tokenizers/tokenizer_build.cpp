#include "tokenizers/tokenizer_build.h"

#include <algorithm>
#include <utility>

#include <lockstep/base/error.h>

namespace lockstep {

namespace {

SpecialIds ids_of(const tokenizers::Vocabulary& vocabulary, const tokenizers::SpecialNames& names) {
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

void add_to(tokenizers::Vocabulary& vocabulary, const AddedToken& token, const std::string& place) {
  const auto known = vocabulary.id_of(token.content);
  if (known && *known != token.id) {
    throw FormatError("{}: the added token {} has the id {} here and {} in the vocabulary", place,
                      tokenizers::in_quotes(token.content), token.id, *known);
  }
  if (!known) {
    vocabulary.add(token.content, token.id, place);
  }
}

// `make_model(vocabulary, settings)` sees the model's own tokens: an added one is never found as a
// part of a word.
template <typename Settings, typename MakeModel>
tokenizers::PartsPointer build_with(tokenizers::CommonSettings common, Settings settings, MakeModel make_model) {
  auto parts = std::make_shared<tokenizers::TokenizerParts>();
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
  parts->added = tokenizers::AddedTokens(std::move(common.added), parts->normalizer);
  parts->around = std::move(common.around);
  parts->special = ids_of(parts->vocabulary, common.names);
  return parts;
}

tokenizers::Vocabulary vocabulary_of(const std::vector<std::string>& tokens) {
  tokenizers::Vocabulary vocabulary;
  for (size_t i = 0; i < tokens.size(); ++i) {
    vocabulary.add(tokens[i], static_cast<int64_t>(i), "vocabulary");
  }
  return vocabulary;
}

tokenizers::PartsPointer from_options(const WordPieceOptions& options) {
  tokenizers::CommonSettings common{.place = "vocabulary",
                        .vocabulary = vocabulary_of(options.vocabulary),
                        .names = tokenizers::SpecialNames::bert()};
  tokenizers::add_special_tokens(common);
  common.around = tokenizers::bert_template(common);
  tokenizers::WordPieceSettings settings;
  tokenizers::add_bert_normalizer(settings.normalizer, {.split_chinese = options.split_chinese,
                                            .strip_accents = options.strip_accents,
                                            .lowercase = options.lowercase});
  return tokenizers::build(std::move(common), std::move(settings));
}

tokenizers::PartsPointer from_options(const BytePairOptions& options) {
  tokenizers::CommonSettings common{.place = "vocabulary",
                        .vocabulary = vocabulary_of(options.vocabulary),
                        .names = tokenizers::SpecialNames::gpt2()};
  tokenizers::add_special_tokens(common);
  tokenizers::BytePairSettings settings{.merges_place = "merges", .add_prefix_space = options.add_prefix_space};
  for (const auto& [left, right] : options.merges) {
    settings.merges.push_back({.left = left, .right = right});
  }
  return tokenizers::build(std::move(common), std::move(settings));
}

}  // namespace

tokenizers::SpecialNames tokenizers::SpecialNames::bert() {
  return {.unknown = "[UNK]",
          .padding = "[PAD]",
          .classifier = "[CLS]",
          .separator = "[SEP]",
          .mask = "[MASK]"};
}

tokenizers::SpecialNames tokenizers::SpecialNames::gpt2() {
  return {.unknown = "<|endoftext|>", .begin = "<|endoftext|>", .end = "<|endoftext|>"};
}

tokenizers::PartsPointer tokenizers::build(tokenizers::CommonSettings common, tokenizers::WordPieceSettings settings) {
  const std::string place = common.place;
  return build_with(std::move(common), std::move(settings),
                    [&](const tokenizers::Vocabulary& vocabulary, const tokenizers::WordPieceSettings& left) {
                      return std::make_unique<tokenizers::WordPiece>(vocabulary, left, place);
                    });
}

tokenizers::PartsPointer tokenizers::build(tokenizers::CommonSettings common, tokenizers::BytePairSettings settings) {
  return build_with(std::move(common), std::move(settings),
                    [](const tokenizers::Vocabulary& vocabulary, const tokenizers::BytePairSettings& left) {
                      return std::make_unique<tokenizers::BytePair>(vocabulary, left);
                    });
}

void tokenizers::add_special_tokens(tokenizers::CommonSettings& common) {
  const tokenizers::SpecialNames& names = common.names;
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

void tokenizers::add_bert_normalizer(tokenizers::TextNormalizer& normalizer, const tokenizers::BertNormalizerOptions& options) {
  using Step = tokenizers::TextNormalizer::Step;
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

tokenizers::TokenTemplate tokenizers::bert_template(const tokenizers::CommonSettings& common) {
  const auto classifier = common.vocabulary.id_of(common.names.classifier);
  const auto separator = common.vocabulary.id_of(common.names.separator);
  return classifier && separator ? tokenizers::TokenTemplate::bert(*classifier, *separator) : tokenizers::TokenTemplate{};
}

WordPieceTokenizer::WordPieceTokenizer(const WordPieceOptions& options)
    : Tokenizer(from_options(options)) {}

BytePairTokenizer::BytePairTokenizer(const BytePairOptions& options)
    : Tokenizer(from_options(options)) {}

}  // namespace lockstep
