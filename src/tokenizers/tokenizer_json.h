#pragma once

// tokenizer.json: a tokenizer's whole description in one file.

#include <optional>
#include <string>

#include "tokenizers/json_file.h"
#include "tokenizers/tokenizer_build.h"

namespace lockstep::tokenizers {

// `names`: of the files beside it, if they name any. Throws FormatError for what is damaged or not
// known.
PartsPointer parse_tokenizer_json(const Json& json, const std::string& file,
                                  const std::optional<SpecialNames>& names);

// An object of tokens and their ids.
Vocabulary parse_vocabulary(const Json& json, const std::string& file);

// One entry of "added_tokens" or of "added_tokens_decoder".
AddedToken parse_added_token(const Json& json, int64_t id, const std::string& place);

}  // namespace lockstep::tokenizers
