#pragma once

// GPT-2's alphabet and how it cuts a text.

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::tokenizers {

// The letter that stands for each byte in the files of a vocabulary: printable ones for themselves,
// the others for U+0100 and on. In UTF-8.
const std::array<std::string, 256>& byte_letters();

// The bytes that a token's letters stand for; nothing if a letter stands for none.
std::optional<std::string> bytes_of_letters(std::string_view token);

// Where the first piece of the text ends, which is valid and not empty, by the expression
// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
const char* end_of_piece(const char* begin, const char* end);

}  // namespace lockstep::tokenizers
