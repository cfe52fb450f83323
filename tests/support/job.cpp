#include "support/job.h"

#include <cstdio>
#include <dirent.h>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <poll.h>
#include <set>
#include <signal.h>
#include <sstream>
#include <unistd.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "base/secret.h"
#include "support/paths.h"

namespace lockstep::test {

namespace {

std::string try_read(const std::string& path) {
  try {
    return base::read_file(path);
  } catch (const IoError&) {
    return "";  // the process ended while we looked
  }
}

std::vector<pid_t> all_pids() {
  std::vector<pid_t> pids;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc"), ::closedir);
  while (const dirent* item = ::readdir(folder.get())) {
    if (const auto pid = base::parse_integer(item->d_name, 1, INT32_MAX)) {
      pids.push_back(static_cast<pid_t>(*pid));
    }
  }
  return pids;
}

// A test runner in the background may have them ignored, and we would pass that on.
void default_signals() {
  for (const int signal : {SIGINT, SIGQUIT, SIGHUP, SIGTERM}) {
    ::signal(signal, SIG_DFL);
  }
}

}  // namespace

std::string lockstep_program() {
  // Another build of the program under the same tests: an installed one, or one with a sanitizer.
  return base::Env().text("LOCKSTEP_TEST_PROGRAM").value_or(testing_support::in_build("lockstep"));
}

base::Output run_lockstep(std::vector<std::string> arguments,
                          std::map<std::string, std::string> env) {
  default_signals();
  base::ProcessOptions options{.argv = {lockstep_program()}, .env = std::move(env)};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  base::Output output = base::run_process(options, base::Deadline::after(kPatience));
  EXPECT_FALSE(output.timed_out) << output.out << output.err;
  return output;
}

bool wait_until(const std::function<bool()>& condition) {
  const base::Deadline deadline = base::Deadline::after(kPatience);
  while (!condition()) {
    if (deadline.expired()) {
      return false;
    }
    ::poll(nullptr, 0, 2);
  }
  return true;
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> result;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    result.push_back(line);
  }
  return result;
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos;
       at = text.find(part, at + part.size())) {
    ++found;
  }
  return found;
}

std::vector<pid_t> children_of(pid_t pid) {
  std::vector<pid_t> children;
  for (const pid_t candidate : all_pids()) {
    const std::string stat = try_read(fmt::format("/proc/{}/stat", candidate));
    const size_t name_end = stat.rfind(')');
    char state = '?';
    int parent = 0;
    if (name_end != std::string::npos &&
        std::sscanf(stat.c_str() + name_end + 1, " %c %d", &state, &parent) == 2 && parent == pid &&
        state != 'Z') {
      children.push_back(candidate);
    }
  }
  return children;
}

void expect_secret_is_hidden(const std::vector<pid_t>& pids) {
  const std::string name = "LOCKSTEP_JOB_SECRET=";
  std::set<std::string> secrets;
  for (const pid_t pid : pids) {
    const std::string env = '\0' + try_read(fmt::format("/proc/{}/environ", pid));
    const size_t entry = env.find('\0' + name);
    if (entry != std::string::npos) {
      const size_t begin = entry + 1 + name.size();
      secrets.insert(env.substr(begin, env.find('\0', begin) - begin));
    }
  }
  EXPECT_FALSE(secrets.empty());
  for (const pid_t pid : pids) {
    const std::string command = try_read(fmt::format("/proc/{}/cmdline", pid));
    for (const std::string& secret : secrets) {
      EXPECT_EQ(command.find(secret), std::string::npos) << command;
    }
  }
}

Job::Job(std::vector<std::string> arguments, JobPlace place)
    : mark_("LOCKSTEP_TEST_MARK=" + base::make_secret()) {
  default_signals();
  const base::UniqueFd out =
      base::open_file(folder_.path() + "/out", O_WRONLY | O_CREAT | O_APPEND);
  const base::UniqueFd err =
      base::open_file(folder_.path() + "/err", O_WRONLY | O_CREAT | O_APPEND);
  const size_t equals = mark_.find('=');
  base::ProcessOptions options{.argv = {lockstep_program(), "run"},
                               .env = std::move(place.env),
                               .stdout_fd = out.get(),
                               .stderr_fd = err.get(),
                               .new_group = true};
  options.env[mark_.substr(0, equals)] = mark_.substr(equals + 1);
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  process_ = base::Process(place.inside ? place.inside(options) : options);
}

std::vector<pid_t> Job::guardians() const {
  std::vector<pid_t> result;
  for (const pid_t agent : agents()) {
    const auto children = children_of(agent);
    result.insert(result.end(), children.begin(), children.end());
  }
  return result;
}

std::vector<pid_t> Job::workers() const {
  std::vector<pid_t> result;
  for (const pid_t guardian : guardians()) {
    const auto children = children_of(guardian);
    result.insert(result.end(), children.begin(), children.end());
  }
  return result;
}

std::vector<pid_t> Job::processes() const {
  std::vector<pid_t> found;
  for (const pid_t pid : all_pids()) {
    if (try_read(fmt::format("/proc/{}/environ", pid)).find(mark_) != std::string::npos) {
      found.push_back(pid);
    }
  }
  return found;
}

std::string Job::out() const {
  return base::read_file(folder_.path() + "/out");
}
std::string Job::err() const {
  return base::read_file(folder_.path() + "/err");
}

bool Job::wait_for_output(const std::string& part, int times) {
  return wait_until([&] { return count(out(), part) >= times; });
}

base::ExitStatus Job::wait(std::chrono::seconds patience) {
  const auto status = process_.wait(base::Deadline::after(patience));
  EXPECT_TRUE(status.has_value()) << "it still runs; it said: " << out() << err();
  return status.value_or(base::ExitStatus{.code = -1});
}

bool Job::is_gone() const {
  return wait_until([this] { return processes().empty(); });
}

}  // namespace lockstep::test
