#include "launch/command.h"

#include <string_view>

#include <lockstep/base/error.h>

#include "launch/output_options.h"

namespace lockstep {

namespace {

// What torchrun does for --run-path, in a process of its own: the script sees the argv that it
// would see as a program.
constexpr const char* kRunPath =
    "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], "
    "run_name='__main__')";

void check(const ProgramOptions& options) {
  if (options.program.empty()) {
    throw UsageError("no program given; for example: lockstep run --nproc-per-node 4 ./my_program");
  }
  if (options.module && options.no_python) {
    throw UsageError("--module runs Python and --no-python does not; give one of them");
  }
  if (options.run_path && (options.module || options.no_python)) {
    throw UsageError("--run-path runs a script by its path; give it without {}",
                     options.module ? "--module" : "--no-python");
  }
}

std::string fill(const std::string& text, std::string_view name, int number) {
  std::string result;
  size_t done = 0;
  for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, done)) {
    const bool is_escaped = at > done && text[at - 1] == '\\';
    const bool is_shells = at > 0 && text[at - 1] == '$';
    result.append(text, done, at - done - (is_escaped ? 1 : 0));
    result += is_shells || is_escaped ? std::string(name) : std::to_string(number);
    done = at + name.size();
  }
  return result.append(text, done);
}

}  // namespace

std::vector<std::string> make_command(const ProgramOptions& options) {
  check(options);
  std::vector<std::string> command;
  if (options.run_path) {
    command = {options.python, "-u", "-c", kRunPath};
  } else if (options.module) {
    command = {options.python, "-u", "-m"};
  } else if (!options.no_python && options.program.front().ends_with(".py")) {
    command = {options.python, "-u"};
  }
  command.insert(command.end(), options.program.begin(), options.program.end());
  return command;
}

std::vector<std::string> fill_placeholders(std::vector<std::string> command,
                                           const RankNumbers& numbers) {
  for (size_t i = 1; i < command.size(); ++i) {
    std::string& text = command[i];
    text = replaced(std::move(text), "${local_rank}", std::to_string(numbers.local_rank));
    text = fill(text, "{rank}", numbers.rank);
    text = fill(text, "{local_rank}", numbers.local_rank);
    text = fill(text, "{world_size}", numbers.world_size);
  }
  return command;
}

}  // namespace lockstep
