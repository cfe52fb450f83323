#include "command_line.h"

#include <algorithm>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/text/text.h"

namespace lockstep::app {

namespace {

// --nproc_per_node=a_b -> --nproc-per-node=a_b
std::string with_dashes(std::string flag) {
  const size_t end = std::min(flag.find('='), flag.size());
  std::replace(flag.begin(), flag.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
  return flag;
}

// -r3 is -r with a value, if there is such a flag.
bool has_value_attached(const CLI::App& app, const std::string& flag) {
  const CLI::Option* option =
      flag.size() > 2 && flag[1] != '-' ? app.get_option_no_throw(flag.substr(0, 2)) : nullptr;
  return option != nullptr && option->get_items_expected_max() > 0;
}

const CLI::Option& find_option(const CLI::App& app, const std::string& name) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (option->check_name(name)) {
      return *option;
    }
    if (option->nonpositional()) {
      names.push_back(option->get_single_name());
    }
  }
  const std::string word = name.substr(std::min(name.find_first_not_of('-'), name.size()));
  throw UsageError("there is no flag {}{}", name, base::did_you_mean(word, names, "--"));
}

}  // namespace

SplitArguments split_arguments(const CLI::App& app, const std::vector<std::string>& arguments) {
  SplitArguments split;
  auto next = arguments.begin();
  while (next != arguments.end() && next->starts_with('-') && *next != "--") {
    std::string flag = with_dashes(*next++);
    if (has_value_attached(app, flag)) {
      flag.insert(2, flag[2] == '=' ? "" : "=");
    }
    const size_t equals = flag.find('=');
    const CLI::Option& option = find_option(app, flag.substr(0, equals));
    // Under its long name, with the value joined: CLI11 cannot take a value that begins with a dash
    // for a flag.
    split.flags.push_back("--" + option.get_single_name() +
                          (equals == std::string::npos ? "" : flag.substr(equals)));
    if (option.get_items_expected_max() > 0 && equals == std::string::npos) {
      if (next == arguments.end()) {
        throw UsageError("{} needs a value", flag);
      }
      split.flags.back() += "=" + *next++;
    }
  }
  if (next != arguments.end() && *next == "--") {
    ++next;
  }
  split.command.assign(next, arguments.end());
  return split;
}

bool parse_flags(CLI::App& app, std::vector<std::string> flags) {
  std::reverse(flags.begin(), flags.end());  // as CLI11 wants them
  try {
    app.parse(flags);
    return true;
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return false;
  } catch (const CLI::ParseError& error) {
    throw UsageError(std::string(error.what()));
  }
}

bool parse_only_flags(CLI::App& app, const std::vector<std::string>& arguments) {
  SplitArguments split = split_arguments(app, arguments);
  if (!parse_flags(app, std::move(split.flags))) {
    return false;
  }
  if (!split.command.empty()) {
    throw UsageError("there is no place for \"{}\" on this line", split.command[0]);
  }
  return true;
}

std::string joined(const Names& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  }
  return text;
}

void check_one_of(const std::string& flag, const std::string& value, const Names& names) {
  if (std::find(names.begin(), names.end(), value) == names.end()) {
    throw UsageError("{} {} is not known; it is {}", flag, value, joined(names));
  }
}

}  // namespace lockstep::app
