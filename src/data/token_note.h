#pragma once

// What a token file was made from, in OUTPUT.json beside it, so that it is made once.

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include <lockstep/data/token_data.h>

namespace lockstep::data {

// Inputs with sizes and versions, the tokenizer's digest, what else decides the ids. Throws
// IoError for what is not there.
nlohmann::json describe_tokens(const TokenizeOptions& options);

struct TokenNote {
  nlohmann::json made_from;  // of describe_tokens()
  uint64_t num_tokens = 0;
  uint64_t size_bytes = 0;  // of the token file
};

std::string token_note_path(const TokenizeOptions& options);

// Whether the note beside the output says this, and the output has the size that it says.
bool is_noted(const TokenizeOptions& options, const nlohmann::json& made_from);
void write_token_note(const TokenizeOptions& options, const TokenNote& note);

}  // namespace lockstep::data
