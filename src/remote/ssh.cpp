#include "remote/ssh.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/text/utf8.h"

namespace lockstep::remote {

namespace {

constexpr auto kAliveInterval = std::chrono::seconds(5);  // between ssh's own probes

bool is_variable_name(const std::string& name) {
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

bool travels(const std::string& name) {
  for (const char* whole : {"PATH", "LD_LIBRARY_PATH", "PYTHONPATH"}) {
    if (name == whole) {
      return true;
    }
  }
  for (const char* family : {"LOCKSTEP_", "OMP_", "NCCL_", "GLOO_", "TORCH_", "CUDA_"}) {
    if (name.starts_with(family)) {
      return true;
    }
  }
  return false;
}

void check_utf8(const std::string& name, const std::string& value) {
  if (!base::is_utf8(value)) {
    throw UsageError("the value of {} is not UTF-8 and cannot go to other hosts; unset it here",
                     name);
  }
}

}  // namespace

SshOptions SshOptions::from_env(const base::Env& env) {
  SshOptions options;
  if (const auto text = env.text("LOCKSTEP_SSH")) {
    options.program = split_words(*text, "LOCKSTEP_SSH");
    if (options.program.empty()) {
      throw UsageError("LOCKSTEP_SSH holds no program; unset it, or write: ssh -p 2222");
    }
  }
  return options;
}

std::vector<std::string> ssh_command(const HostEntry& host, const SshOptions& options,
                                     const std::vector<std::string>& command) {
  std::vector<std::string> argv = options.program;
  // -T, -x: no terminal and no X11, whatever the configuration says; of two values for one option
  // ssh takes the first, so the user's win.
  argv.insert(argv.end(),
              {"-T", "-x", "-o", "BatchMode=yes", "-o",
               fmt::format("ConnectTimeout={}", options.connect_timeout.count()), "-o",
               fmt::format("ServerAliveInterval={}", kAliveInterval.count()), "-o",
               fmt::format("ServerAliveCountMax={}",
                           (options.alive_timeout + kAliveInterval - std::chrono::seconds(1)) /
                               kAliveInterval)});
  if (!host.user.empty()) {
    argv.insert(argv.end(), {"-l", host.user});
  }
  argv.push_back(host.name);
  argv.push_back(shell_command(command));
  return argv;
}

std::vector<std::string> remote_lockstep(const std::string& path,
                                         const std::vector<std::string>& arguments) {
  // In a sh of its own: the login shell may be one that knows no `if`.
  std::vector<std::string> command{
      "exec", "sh", "-c",
      "if [ -x \"$0\" ]; then exec \"$0\" \"$@\"; else exec lockstep \"$@\"; fi", path};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

std::string shell_quoted(const std::string& word) {
  const bool is_plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("_-./,:@%+").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (is_plain) {
    return word;
  }
  std::string quoted = "'";
  for (const char c : word) {
    quoted += c == '\'' ? "'\\''" : std::string(1, c);
  }
  return quoted + "'";
}

std::string shell_command(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : " ") + shell_quoted(word);
  }
  return text;
}

std::vector<std::string> split_words(const std::string& text, const std::string& what) {
  std::vector<std::string> words;
  bool in_word = false;
  char quote = '\0';
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote == '\0' && (c == ' ' || c == '\t' || c == '\n')) {
      in_word = false;
      continue;
    }
    if (!in_word) {
      words.emplace_back();
      in_word = true;
    }
    if (quote == '\0' && (c == '\'' || c == '"')) {
      quote = c;
    } else if (quote != '\0' && c == quote) {
      quote = '\0';
    } else if (c == '\\' && quote != '\'') {
      // Inside "" a backslash stands for itself unless it protects one of these.
      const bool protects =
          i + 1 < text.size() &&
          (quote == '\0' || std::string_view("\"\\$`").find(text[i + 1]) != std::string_view::npos);
      words.back() += protects ? text[++i] : c;
    } else {
      words.back() += c;
    }
  }
  if (quote != '\0') {
    throw UsageError("{}: a quote ({}) is not closed in: {}", what, quote, text);
  }
  return words;
}

std::map<std::string, std::string> travelling_environment(
    const std::vector<std::string>& environment, const std::vector<std::string>& named) {
  std::map<std::string, std::string> all;
  std::map<std::string, std::string> travelling;
  for (const std::string& entry : environment) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos) {
      continue;
    }
    const std::string name = entry.substr(0, equals);
    all[name] = entry.substr(equals + 1);
    if (travels(name)) {
      travelling[name] = all[name];
    }
  }
  for (const std::string& entry : named) {
    const size_t equals = entry.find('=');
    const std::string name = entry.substr(0, equals);
    if (!is_variable_name(name)) {
      throw UsageError("--env {} does not name a variable; write NAME or NAME=VALUE", entry);
    }
    if (equals == std::string::npos && all.count(name) == 0) {
      throw UsageError("--env {}: it is not set here; set it, or write --env {}=VALUE", name, name);
    }
    travelling[name] = equals == std::string::npos ? all[name] : entry.substr(equals + 1);
  }
  for (const auto& [name, value] : travelling) {
    check_utf8(name, value);
  }
  return travelling;
}

}  // namespace lockstep::remote
