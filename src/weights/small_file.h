#pragma once

// Small files beside the weights, such as config.json.

#include <optional>
#include <string>

namespace lockstep {
class Group;
}  // namespace lockstep

namespace lockstep::weights {

// Collective: the text of file `name` in `folder` (a path or s3://), read by rank 0 alone; nothing
// if there is no such file. Throws FormatError if it has more than 16 MB, and IoError, on every
// rank.
std::optional<std::string> read_small_file(const std::string& folder, const std::string& name,
                                           Group& group);

}  // namespace lockstep::weights
