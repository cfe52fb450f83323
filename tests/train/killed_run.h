#pragma once

// What tests know of kill_job.cpp, a run that tells its parameters after each step.

#include <map>
#include <string>

#include "support/job.h"

namespace lockstep::test {

// "step 7 00ab" -> {7, "00ab"}, of every such line.
inline std::map<int, std::string> hashes(const std::string& text, const std::string& word) {
  std::map<int, std::string> found;
  for (const std::string& line : lines(text)) {
    if (line.starts_with(word + " ")) {
      const size_t blank = line.find(' ', word.size() + 1);
      found[std::stoi(line.substr(word.size() + 1))] = line.substr(blank + 1);
    }
  }
  return found;
}

}  // namespace lockstep::test
