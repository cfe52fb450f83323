#include "support/paths.h"

namespace lockstep::testing_support {

std::string in_tree(std::string_view path) {
  return std::string(LOCKSTEP_SOURCE_DIR "/").append(path);
}

std::string in_build(std::string_view name) {
  return std::string(LOCKSTEP_BIN_DIR "/").append(name);
}

}  // namespace lockstep::testing_support
