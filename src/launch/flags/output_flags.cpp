// The flags of `lockstep run` about output.

#include <charconv>
#include <set>

#include <lockstep/base/error.h>

#include "base/text/text.h"
#include "launch/flags/run_flags.h"

namespace lockstep::launch {

namespace {

// "apple,orange" is two; a doubled comma stands for one, as in torchrun.
std::vector<std::string> parse_filters(const std::string& flag, const std::string& text) {
  std::vector<std::string> filters;
  std::string filter;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == ',' && text.substr(i, 2) != ",,") {
      filters.push_back(std::move(filter));
      filter.clear();
    } else {
      filter += text[i];
      i += text[i] == ',' ? 1 : 0;
    }
  }
  filters.push_back(std::move(filter));
  for (const std::string& part : filters) {
    if (part.empty() && !text.empty()) {
      throw UsageError(
          "{} {} has an empty filter, which would match every line; a comma in a "
          "filter is written twice",
          flag, text);
    }
  }
  return text.empty() ? std::vector<std::string>{} : filters;
}

std::vector<int> parse_ranks(const std::string& flag, const std::string& text) {
  std::set<int> ranks;
  for (const std::string& item : base::split(text, ',')) {
    ranks.insert(flag_number(flag, item, 0, kMaxProcsPerNode - 1));
  }
  return {ranks.begin(), ranks.end()};
}

// "750": octal, as chmod takes it.
mode_t parse_mode(const std::string& flag, const std::string& text) {
  constexpr unsigned kMostNeeded = 0700;  // without these the ranks could not write there
  unsigned mode = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), mode, 8);
  if (error != std::errc() || end != text.data() + text.size() || mode > 07777 ||
      (mode & kMostNeeded) != kMostNeeded) {
    throw UsageError("{} {} is not a mode from 700 to 7777 in octal, like 750", flag, text);
  }
  return mode;
}

}  // namespace

OutputOptions output_options(const RunFlags& flags, const RunHost& host) {
  OutputOptions options{.log_dir = flags.log_dir, .prefix = !flags.no_prefix};
  if (!flags.redirects.empty()) {
    options.redirects = StreamChoice::parse(flags.redirects, "--redirects");
  }
  if (!flags.tee.empty()) {
    options.tee = StreamChoice::parse(flags.tee, "--tee");
  }
  if (!flags.log_dir_mode.empty()) {
    options.folder_mode = parse_mode("--log-dir-mode", flags.log_dir_mode);
  }
  options.shown = parse_ranks("--local-ranks-filter", flags.local_ranks_filter);
  const std::string out = "--duplicate-stdout-filters", err = "--duplicate-stderr-filters";
  options.stdout_filters = parse_filters(out, flags.duplicate_stdout_filters);
  options.stderr_filters = parse_filters(err, flags.duplicate_stderr_filters);
  if (flags.log_dir.empty() &&
      (!options.stdout_filters.empty() || !options.stderr_filters.empty())) {
    throw UsageError("{} needs --log-dir: the folder for the lines that it copies",
                     options.stdout_filters.empty() ? err : out);
  }
  if (!host.prefix_template.empty() && !flags.no_prefix) {
    options.prefix_template =
        replaced(host.prefix_template, "${role_name}", flags.role.empty() ? "default" : flags.role);
  }
  return options;
}

}  // namespace lockstep::launch
