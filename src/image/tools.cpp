#include "image/tools.h"

#include <cstdlib>
#include <sstream>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "base/process/process.h"

namespace lockstep::image {

namespace {

constexpr auto kToolTimeout = std::chrono::hours(4);  // a large image on a slow disk

// The first line that calls itself an error, where there is one; what follows it are consequences.
std::string telling_line(const std::string& text) {
  std::string last;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("E: ") || line.find("ERROR") != std::string::npos) {
      return line;
    }
    if (line.find_first_not_of(" \t\r") != std::string::npos) {
      last = line;
    }
  }
  return last;
}

}  // namespace

std::string find_tool(const std::string& name) {
  std::istringstream folders(base::Env().text("PATH").value_or("/usr/bin:/bin"));
  for (std::string folder; std::getline(folders, folder, ':');) {
    folder += "/" + name;
    if (::access(folder.c_str(), X_OK) == 0) {
      return folder;
    }
  }
  return "";
}

void run_tool(const ToolRun& run) {
  if (find_tool(run.argv[0]).empty()) {
    throw UsageError("cannot {}: {} is not installed; apt-get install {}", run.task, run.argv[0],
                     run.package);
  }
  const base::Output output = base::run_process({.argv = run.argv, .env = {{"LC_ALL", "C"}}},
                                                base::Deadline::after(kToolTimeout));
  if (output.status.ok()) {
    return;
  }
  if (output.err.find("No space left on device") != std::string::npos) {
    throw IoError("cannot {}: the disk is full; make room, or choose another --output", run.task);
  }
  const std::string said = telling_line(output.err.empty() ? output.out : output.err);
  throw IoError("cannot {}: {}: {}", run.task, run.argv[0],
                said.empty() ? output.status.text() : said);
}

}  // namespace lockstep::image
