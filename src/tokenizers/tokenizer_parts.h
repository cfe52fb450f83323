#pragma once

// All that a tokenizer is made of.

#include <memory>
#include <mutex>
#include <vector>

#include <lockstep/tokenizers/tokenizer.h>

#include "tokenizers/added_tokens.h"
#include "tokenizers/token_model.h"
#include "tokenizers/token_template.h"
#include "tokenizers/vocabulary.h"

namespace lockstep::tokenizers {

// Scratches between two calls: as many as there were calls at once.
class ScratchPool {
 public:
  // Gives it back when it goes.
  class Lease {
   public:
    Lease(ScratchPool& pool, std::unique_ptr<EncodeScratch> scratch)
        : pool_(pool), scratch_(std::move(scratch)) {}
    ~Lease();
    Lease(Lease&&) = delete;
    EncodeScratch& operator*() const { return *scratch_; }

   private:
    ScratchPool& pool_;
    std::unique_ptr<EncodeScratch> scratch_;
  };
  Lease take();

 private:
  static constexpr size_t kKeptIds = 1u << 20;  // what a longer text needed is freed

  std::mutex mutex_;
  size_t num_made_ = 0;
  std::vector<std::unique_ptr<EncodeScratch>> free_;
};

struct TokenizerParts {
  Vocabulary vocabulary;  // added tokens included
  AddedTokens added;
  TextNormalizer normalizer;  // applied before the model only where added tokens need it
  std::unique_ptr<const TokenModel> model;
  TokenTemplate around;
  SpecialIds special;
  mutable ScratchPool scratches;
};

}  // namespace lockstep::tokenizers
