#include "formats/archive/tar_reader.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <unordered_set>

#include <lockstep/base/error.h>

#include "base/round.h"
#include "formats/tensor_info.h"

namespace lockstep::formats {

namespace {

constexpr uint64_t kTarBlockBytes = 512;
constexpr uint64_t kMaxExtendedBytes = 1u << 20;  // attributes of a Mac's files are long
constexpr uint64_t kMaxTailBytes = 64u << 10;     // writers fill up to a "record", usually 10 KiB
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

// The text in a field of fixed size.
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

struct Record {
  std::string_view key;
  std::string_view value;
};

// Lines "LENGTH KEY=VALUE\n" of PAX; nothing if they are none.
std::optional<std::vector<Record>> parse_records(std::string_view lines) {
  std::vector<Record> records;
  while (!lines.empty()) {
    size_t length = 0;
    const auto [end, error] = std::from_chars(lines.data(), lines.data() + lines.size(), length);
    const auto digits = static_cast<size_t>(end - lines.data());
    if (error != std::errc() || length < digits + 2 || length > lines.size() || *end != ' ' ||
        lines[length - 1] != '\n') {
      return std::nullopt;
    }
    const std::string_view record = lines.substr(digits + 1, length - digits - 2);
    const size_t equals = record.find('=');
    if (equals == record.npos) {
      return std::nullopt;
    }
    records.push_back({.key = record.substr(0, equals), .value = record.substr(equals + 1)});
    lines.remove_prefix(length);
  }
  return records;
}

// Says who and when, not what.
bool is_harmless(std::string_view key) {
  return key == "mtime" || key == "atime" || key == "ctime" || key == "uid" || key == "gid" ||
         key == "uname" || key == "gname" || key == "comment";
}

// Links, devices and folders: no data follow, whatever size they state.
bool has_no_data(char type) {
  return type >= '1' && type <= '6';
}

class Members {
 public:
  Members(const base::ByteSource& source, const TarOptions& options)
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
    if (source_.size() - offset_ < kTarBlockBytes) {
      throw FormatError("{}: a tar without an end at offset {}; it is truncated", source_.name(),
                        offset_);
    }
    const std::string header = source_.read_text(offset_, kTarBlockBytes);
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
    const char type = header[kTypeAt];
    TarMember member{
        .name = name_in(header), .offset_bytes = offset_ + kTarBlockBytes, .size_bytes = *size};
    if (options_.allow_any && has_no_data(type)) {
      member.size_bytes = 0;
    }
    const bool describes_next =
        type == 'x' || type == 'g' || (options_.allow_any && (type == 'L' || type == 'K'));
    if (!describes_next) {
      member.name = next_.name.value_or(member.name);
      member.size_bytes = next_.size_bytes.value_or(member.size_bytes);
      next_ = {};
    }
    if (member.size_bytes > source_.size() - member.offset_bytes) {
      throw FormatError(
          "{}: member {} of the tar ({} bytes at offset {}) ends beyond the file's "
          "{}; it is truncated",
          source_.name(), base::shown(member.name), member.size_bytes, member.offset_bytes,
          source_.size());
    }
    if (describes_next) {
      describe_next(member, type);
    } else {
      add(member, type);
    }
    offset_ = std::min(member.offset_bytes + base::rounded_up(member.size_bytes, kTarBlockBytes),
                       source_.size());
    return true;
  }

  // In long names the folders are in a field of their own; GNU's own layout has dates there.
  static std::string name_in(std::string_view header) {
    const bool is_gnu = header.substr(257, 8) == std::string_view("ustar  \0", 8);
    const std::string_view folder = is_gnu ? "" : text(header.substr(345, 155));
    const std::string_view name = text(header.substr(0, 100));
    return folder.empty() ? std::string(name) : fmt::format("{}/{}", folder, name);
  }

  void describe_next(const TarMember& member, char type) {
    if (member.size_bytes > kMaxExtendedBytes) {
      throw FormatError(
          "{}: the extended header at offset {} of the tar has {} bytes, the limit is {}",
          source_.name(), member.offset_bytes, member.size_bytes, kMaxExtendedBytes);
    }
    const std::string bytes = source_.read_text(member.offset_bytes, member.size_bytes);
    if (type == 'L' || type == 'K') {
      if (type == 'L') {  // K: where a link leads
        next_.name = text(bytes);
      }
      return;
    }
    const auto records = parse_records(bytes);
    bool is_understood = records.has_value();
    for (const Record& record : records.value_or(std::vector<Record>{})) {
      is_understood = is_understood && take_record(record, type);
    }
    if (!is_understood) {
      throw FormatError("{}: the extended header at offset {} of the tar {}", source_.name(),
                        member.offset_bytes,
                        options_.allow_any ? "is damaged, or of a sparse file, which is not known"
                                           : "changes more than dates and owners");
    }
  }

  // False for what would change the meaning of the member in a way that is not known here.
  bool take_record(const Record& record, char type) {
    if (is_harmless(record.key)) {
      return true;
    }
    if (!options_.allow_any || record.key.starts_with("GNU.sparse")) {
      return false;
    }
    if (record.key == "path") {
      next_.name = record.value;
      return type == 'x';  // one name for all members would be none
    }
    if (record.key == "size") {
      uint64_t size = 0;
      const char* const last = record.value.data() + record.value.size();
      const auto [end, error] = std::from_chars(record.value.data(), last, size);
      next_.size_bytes = size;
      return type == 'x' && error == std::errc() && end == last;
    }
    return true;  // attributes, where a link leads, what a vendor keeps
  }

  void add(const TarMember& member, char type) {
    const bool is_file = type == '0' || type == '\0' || (options_.allow_any && type == '7');
    if (options_.allow_any && (!is_file || member.name.ends_with('/'))) {
      return;
    }
    const bool is_plain = !member.name.empty() && member.name != "." && member.name != ".." &&
                          (options_.allow_any || member.name.find('/') == member.name.npos);
    if (!is_file || !is_plain) {
      throw FormatError(
          "{}: member {} at offset {} of the tar is no regular file with a plain "
          "name",
          source_.name(), base::shown(member.name), member.offset_bytes);
    }
    if (!names_.insert(member.name).second || names_.size() > options_.max_members) {
      throw FormatError(
          "{}: member {} at offset {} of the tar is there twice, or is one of more "
          "than {}",
          source_.name(), base::shown(member.name), member.offset_bytes, options_.max_members);
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

  const base::ByteSource& source_;
  const TarOptions options_;
  // What an extended header said of the member that follows.
  struct Next {
    std::optional<std::string> name;
    std::optional<uint64_t> size_bytes;
  };

  uint64_t offset_ = 0;
  Next next_;
  std::vector<TarMember> members_;
  std::unordered_set<std::string> names_;
};

}  // namespace

std::vector<TarMember> read_tar(const base::ByteSource& source, const TarOptions& options) {
  return Members(source, options).read();
}

}  // namespace lockstep::formats
