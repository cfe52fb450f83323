#include "storage/aws_profile.h"

#include <filesystem>
#include <sstream>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"

namespace lockstep::storage {

namespace {

constexpr const char* kSpace = " \t\r";

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(kSpace);
  return begin == std::string::npos ? ""
                                    : text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

}  // namespace

std::optional<std::map<std::string, AwsSection>> read_aws_file(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    return std::nullopt;
  }
  std::map<std::string, AwsSection> sections;
  AwsSection* section = nullptr;
  std::string group;  // "s3." below "s3 ="
  std::istringstream lines(base::read_file(path));
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const bool is_indented = line.starts_with(' ') || line.starts_with('\t');
    const std::string text = trimmed(line);
    if (text.empty() || text.starts_with('#') || text.starts_with(';')) {
      continue;
    }
    const size_t equals = text.find('=');
    if (text.starts_with('[') && text.ends_with(']')) {
      section = &sections[trimmed(text.substr(1, text.size() - 2))];
      group.clear();
    } else if (section == nullptr || equals == std::string::npos) {
      throw UsageError("{}:{}: neither [section] nor name = value in one; mend the file", path,
                       number);
    } else {
      const std::string name = trimmed(text.substr(0, equals));
      const std::string value = trimmed(text.substr(equals + 1));
      if (!is_indented) {
        group = value.empty() ? name + "." : "";
      }
      (*section)[is_indented ? group + name : name] = value;
    }
  }
  return sections;
}

}  // namespace lockstep::storage
