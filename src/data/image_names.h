#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::data {

// "jpg" of "a/b.c.JPG", in small letters; empty without a dot in the last part.
std::string extension_of(std::string_view path);

// Returns the text with A to Z as a to z.
std::string small_letters(std::string text);

// Goes by the end: .jpg, .jpeg, .png, in any case. A hidden file (".NAME" in its path) is none.
bool is_picture_name(std::string_view path);

// Throws FormatError for a file that is too large to be a picture.
void check_file_size(uint64_t size, const std::string& name);

}  // namespace lockstep::data
