#include <utility>

#include <lockstep/base/error.h>
#include <lockstep/tokenizers/tokenizer.h>

#include "base/text/utf8.h"
#include "tokenizers/tokenizer_parts.h"

namespace lockstep::tokenizers {

ScratchPool::Lease ScratchPool::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    free_.reserve(++num_made_);  // so that giving back cannot fail
    return {*this, std::make_unique<EncodeScratch>()};
  }
  std::unique_ptr<EncodeScratch> scratch = std::move(free_.back());
  free_.pop_back();
  return {*this, std::move(scratch)};
}

ScratchPool::Lease::~Lease() {
  if (scratch_->ids.size() > kKeptIds) {
    return;
  }
  const std::lock_guard lock(pool_.mutex_);
  pool_.free_.push_back(std::move(scratch_));
}

}  // namespace lockstep::tokenizers

namespace lockstep {

namespace {

using Pieces = std::vector<tokenizers::AddedTokens::Piece>;

void append_ids(const tokenizers::TokenizerParts& parts, std::string_view text,
                tokenizers::EncodeScratch& scratch) {
  const auto append = [&](const tokenizers::AddedTokens::Piece& piece) {
    if (piece.id >= 0) {
      scratch.ids.add(piece.id);
    } else {
      parts.model->append_ids(piece.text, scratch);
    }
  };
  Pieces pieces;
  parts.added.split(text, false, pieces);
  std::string normalized;
  Pieces inner;
  for (const tokenizers::AddedTokens::Piece& piece : pieces) {
    if (piece.id >= 0 || !parts.added.has_normalized()) {
      append(piece);
      continue;
    }
    if (!parts.normalizer.is_identity()) {
      parts.normalizer.apply(piece.text, normalized);
    }
    inner.clear();
    parts.added.split(parts.normalizer.is_identity() ? piece.text : normalized, true, inner);
    for (const tokenizers::AddedTokens::Piece& part : inner) {
      append(part);
    }
  }
}

// Appends the ids of any bytes at all.
void append_ids_of_bytes(const tokenizers::TokenizerParts& parts, std::string_view text,
                         tokenizers::EncodeScratch& scratch) {
  if (base::first_invalid_utf8(text) == text.size()) {
    append_ids(parts, text, scratch);
  } else {
    append_ids(parts, base::replace_invalid_utf8(text), scratch);
  }
}

}  // namespace

Tokenizer::Tokenizer(std::shared_ptr<const tokenizers::TokenizerParts> parts)
    : parts_(std::move(parts)) {}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  return encode_with_types(text, options).ids;
}

Encoding Tokenizer::encode_with_types(std::string_view text, const EncodeOptions& options) const {
  const tokenizers::ScratchPool::Lease lease = parts_->scratches.take();
  tokenizers::EncodeScratch& scratch = *lease;
  scratch.ids.cut(0);
  append_ids_of_bytes(*parts_, text, scratch);
  const size_t first = scratch.ids.size();
  if (options.pair) {
    append_ids_of_bytes(*parts_, *options.pair, scratch);
  }
  const std::span<const int32_t> ids = scratch.ids.ids();
  return tokenizers::fill(options.pair ? parts_->around.pair : parts_->around.single,
                          ids.subspan(0, first), ids.subspan(first), options);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, const DecodeOptions& options) const {
  std::vector<std::string_view> tokens;
  for (const int32_t id : ids) {
    const auto token = parts_->vocabulary.token_of(id);
    if (!token) {
      throw UsageError("decode: {} is no id of this tokenizer, whose vocabulary has {}", id,
                       vocab_size());
    }
    // What is shown decides, as in Hugging Face's: a special token that is normalized may stay.
    const std::string_view shown = parts_->added.shown(id, *token);
    if (!options.skip_special_tokens || !parts_->added.is_special(shown)) {
      tokens.push_back(shown);
    }
  }
  return parts_->model->join(tokens);
}

int64_t Tokenizer::vocab_size() const {
  return parts_->vocabulary.size();
}

std::optional<int32_t> Tokenizer::id_of(std::string_view token) const {
  return parts_->vocabulary.id_of(token);
}

std::string Tokenizer::token_of(int32_t id) const {
  const auto token = parts_->vocabulary.token_of(id);
  if (!token) {
    throw UsageError("token_of: {} is no id of this tokenizer, whose vocabulary has {}", id,
                     vocab_size());
  }
  return std::string(*token);
}

const SpecialIds& Tokenizer::special_ids() const {
  return parts_->special;
}

std::string Tokenizer::kind() const {
  return parts_->model->kind();
}

}  // namespace lockstep
