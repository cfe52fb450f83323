#include "data/image_names.h"

#include <lockstep/base/error.h>

namespace lockstep::data {

namespace {

constexpr uint64_t kMaxFileBytes = 256u << 20;

}  // namespace

std::string small_letters(std::string text) {
  for (char& c : text) {
    c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return text;
}

std::string extension_of(std::string_view path) {
  path.remove_prefix(path.find_last_of('/') + 1);  // npos + 1 is 0
  const size_t dot = path.find_last_of('.');
  return small_letters(std::string(dot == std::string_view::npos ? "" : path.substr(dot + 1)));
}

bool is_picture_name(std::string_view path) {
  if (path.starts_with('.') || path.find("/.") != path.npos) {
    return false;  // a Mac's "._cat.jpg" beside "cat.jpg", .ipynb_checkpoints, .cache
  }
  const std::string extension = extension_of(path);
  return extension == "jpg" || extension == "jpeg" || extension == "png";
}

void check_file_size(uint64_t size, const std::string& name) {
  if (size > kMaxFileBytes) {
    throw FormatError("{}: {} bytes are too many for a picture, the limit is {}", name, size,
                      kMaxFileBytes);
  }
}

}  // namespace lockstep::data
