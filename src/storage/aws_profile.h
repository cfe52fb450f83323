#pragma once

// ~/.aws/credentials and ~/.aws/config: sections of "name = value".

#include <map>
#include <optional>
#include <string>

namespace lockstep::storage {

// Values of a section; those below a line "s3 =" are named "s3.addressing_style".
using AwsSection = std::map<std::string, std::string>;

// Section names as they are written: "default", "profile x". Throws UsageError, with file and line,
// for what is no such file; values are never shown, they may be secret. Nothing if there is no
// file.
std::optional<std::map<std::string, AwsSection>> read_aws_file(const std::string& path);

}  // namespace lockstep::storage
