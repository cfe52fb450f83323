#include "formats/tar_reader.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <unordered_set>

#include <lockstep/base/error.h>

#include "base/round.h"
#include "formats/tensor_info.h"

namespace lockstep {

namespace {

constexpr uint64_t kBlockBytes = 512;
constexpr uint64_t kMaxExtendedBytes = 64u << 10;
constexpr uint64_t kMaxTailBytes = 64u << 10;  // writers fill up to a "record", usually 10 KiB
constexpr size_t kChecksumAt = 148;
constexpr size_t kTypeAt = 156;

// Octal digits, ended by a space or a zero.
std::optional<uint64_t> octal(std::string_view field) {
  field.remove_prefix(std::min(field.find_first_not_of(' '), field.size()));
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), number, 8);
  const std::string_view rest = field.substr(static_cast<size_t>(end - field.data()));
  const bool is_ended = rest.find_first_not_of(std::string_view(" \0", 2)) == rest.npos;
  return error == std::errc() && is_ended ? std::optional(number) : std::nullopt;
}

// Of a text in a field of fixed size.
std::string_view text(std::string_view field) {
  return field.substr(0, field.find('\0'));
}

bool is_checksum_right(std::string_view header) {
  uint64_t sum = 0;
  for (size_t i = 0; i < header.size(); ++i) {
    const bool is_field = i >= kChecksumAt && i < kChecksumAt + 8;
    sum += is_field ? ' ' : static_cast<unsigned char>(header[i]);
  }
  return octal(header.substr(kChecksumAt, 8)) == sum;
}

// Lines "LENGTH KEY=VALUE\n".
bool says_what(std::string_view lines) {
  while (!lines.empty()) {
    size_t length = 0;
    const auto [end, error] = std::from_chars(lines.data(), lines.data() + lines.size(), length);
    const auto digits = static_cast<size_t>(end - lines.data());
    if (error != std::errc() || length <= digits || length > lines.size() || *end != ' ') {
      return true;
    }
    const std::string_view record = lines.substr(digits + 1, length - digits - 1);
    const std::string_view key = record.substr(0, record.find('='));
    if (key != "mtime" && key != "atime" && key != "ctime" && key != "uid" && key != "gid" &&
        key != "uname" && key != "gname" && key != "comment") {
      return true;
    }
    lines.remove_prefix(length);
  }
  return false;
}

class Members {
 public:
  Members(const ByteSource& source, const TarOptions& options)
      : source_(source), options_(options) {}

  std::vector<TarMember> read() {
    while (take()) {
    }
    check_tail();
    return std::move(members_);
  }

 private:
  // One header and its data; false at the end mark.
  bool take() {
    if (source_.size() - offset_ < kBlockBytes) {
      throw FormatError("{}: a tar without an end at offset {}; it is truncated", source_.name(),
                        offset_);
    }
    const std::string header = source_.read_text(offset_, kBlockBytes);
    if (header.find_first_not_of('\0') == header.npos) {
      return false;
    }
    const std::optional<uint64_t> size = octal(std::string_view(header).substr(124, 12));
    if (!is_checksum_right(header) || !size || std::string_view(header).substr(257, 5) != "ustar") {
      throw FormatError(
          "{}: the header of a tar at offset {} is damaged: its checksum or size is "
          "wrong",
          source_.name(), offset_);
    }
    const TarMember member{
        .name = name_in(header), .offset_bytes = offset_ + kBlockBytes, .size_bytes = *size};
    if (*size > source_.size() - member.offset_bytes) {
      throw FormatError(
          "{}: member {} of the tar ({} bytes at offset {}) ends beyond the file's "
          "{}; it is truncated",
          source_.name(), shown(member.name), *size, member.offset_bytes, source_.size());
    }
    add(member, header[kTypeAt]);
    offset_ = std::min(member.offset_bytes + rounded_up(*size, kBlockBytes), source_.size());
    return true;
  }

  // In long names the folders are in a field of their own.
  static std::string name_in(std::string_view header) {
    const std::string_view folder = text(header.substr(345, 155));
    const std::string_view name = text(header.substr(0, 100));
    return folder.empty() ? std::string(name) : fmt::format("{}/{}", folder, name);
  }

  void add(const TarMember& member, char type) {
    if (type == 'x' || type == 'g') {
      if (member.size_bytes > kMaxExtendedBytes ||
          says_what(source_.read_text(member.offset_bytes, member.size_bytes))) {
        throw FormatError(
            "{}: the extended header at offset {} of the tar changes more than dates "
            "and owners",
            source_.name(), member.offset_bytes);
      }
      return;
    }
    if (type == '5' && options_.allow_folders && member.size_bytes == 0) {
      return;
    }
    const bool is_plain = !member.name.empty() && member.name != "." && member.name != ".." &&
                          (options_.allow_folders || member.name.find('/') == member.name.npos);
    if ((type != '0' && type != '\0') || !is_plain) {
      throw FormatError(
          "{}: member {} at offset {} of the tar is no regular file with a plain "
          "name",
          source_.name(), shown(member.name), member.offset_bytes);
    }
    if (!names_.insert(member.name).second || names_.size() > options_.max_members) {
      throw FormatError(
          "{}: member {} at offset {} of the tar is there twice, or is one of more "
          "than {}",
          source_.name(), shown(member.name), member.offset_bytes, options_.max_members);
    }
    members_.push_back(member);
  }

  void check_tail() const {
    const uint64_t size = source_.size() - offset_;
    if (size > kMaxTailBytes ||
        source_.read_text(offset_, size).find_first_not_of('\0') != std::string::npos) {
      throw FormatError("{}: something follows the end of the tar at offset {}", source_.name(),
                        offset_);
    }
  }

  const ByteSource& source_;
  const TarOptions options_;
  uint64_t offset_ = 0;
  std::vector<TarMember> members_;
  std::unordered_set<std::string> names_;
};

}  // namespace

std::vector<TarMember> read_tar(const ByteSource& source, const TarOptions& options) {
  return Members(source, options).read();
}

}  // namespace lockstep
