#include "checkpoint_files/own_files.h"

#include <algorithm>

#include <fmt/format.h>

#include "checkpoint_files/manifest.h"

namespace lockstep::checkpoint_files {

namespace {

constexpr std::string_view kAttached = "attached-";
constexpr std::string_view kShardEnd = ".safetensors";
constexpr size_t kRankDigits = 5;  // at least

// Removes `text` from the front of `rest`; false if it is not there.
bool skip(std::string_view& rest, std::string_view text) {
  if (!rest.starts_with(text)) {
    return false;
  }
  rest.remove_prefix(text.size());
  return true;
}

// Removes a number as fmt writes it: at least `min_digits`, and no zeros in front beyond these.
bool skip_number(std::string_view& rest, size_t min_digits) {
  const size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  if (digits < min_digits || (digits > min_digits && rest.front() == '0')) {
    return false;
  }
  rest.remove_prefix(digits);
  return true;
}

bool is_shard(std::string_view name) {
  bool is_one = skip(name, "shard-") && skip_number(name, kRankDigits) && skip(name, "-of-") &&
                skip_number(name, kRankDigits);
  if (is_one && skip(name, "-save-")) {
    is_one = skip_number(name, 1);
  }
  return is_one && name == kShardEnd;
}

// Names of attachments are of these characters, with no dot in front.
bool is_attachment(std::string_view name) {
  return skip(name, kAttached) && !name.empty() && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '-' || c == '_' || c == '.';
         });
}

}  // namespace

std::string shard_name(int rank, int size, std::optional<uint64_t> sequence) {
  const std::string save = sequence ? fmt::format("-save-{}", *sequence) : "";
  return fmt::format("shard-{:05}-of-{:05}{}{}", rank, size, save, kShardEnd);
}

std::string attachment_file_name(const std::string& name, std::optional<uint64_t> sequence) {
  const std::string save = sequence ? fmt::format("save-{}-", *sequence) : "";
  return fmt::format("{}{}{}", kAttached, save, name);
}

bool is_own_file(std::string_view name) {
  return name == kManifestFile || is_shard(name) || is_attachment(name);
}

}  // namespace lockstep::checkpoint_files
