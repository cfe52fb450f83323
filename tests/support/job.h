#pragma once

// `lockstep` as tests see it: started, watched, killed, and searched for what it leaves behind.

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <sys/types.h>
#include <vector>

#include "base/process/process.h"
#include "support/temp_folder.h"

namespace lockstep::test {

// Long enough for a sanitizer build on a busy machine; only failures take it.
inline constexpr auto kPatience = std::chrono::seconds(30);

std::string lockstep_program();

// Runs `lockstep ARGUMENTS` to its end.
base::Output run_lockstep(std::vector<std::string> arguments,
                          std::map<std::string, std::string> env = {});

// Polls until `condition` holds; false if it does not within kPatience.
bool wait_until(const std::function<bool()>& condition);

std::vector<std::string> lines(const std::string& text);
int count(const std::string& text, const std::string& part);

std::vector<pid_t> children_of(pid_t pid);

// Fails the test unless some of these processes have a job's secret in their environment and none
// has it on its command line, where every user of the host could read it.
void expect_secret_is_hidden(const std::vector<pid_t>& pids);

// A running `lockstep run`. Every process of it, however far it moved away, carries a mark in its
// environment, by which leftovers are found.
struct JobPlace {
  std::map<std::string, std::string> env;  // added to this process's
  std::function<base::ProcessOptions(base::ProcessOptions)>
      inside;  // TestNodes::inside(); empty: here
};

class Job {
 public:
  // ARGUMENTS as for `lockstep run`.
  explicit Job(std::vector<std::string> arguments, JobPlace place = {});

  pid_t leader() const { return process_.pid(); }
  std::vector<pid_t> agents() const { return children_of(leader()); }
  std::vector<pid_t> guardians() const;
  std::vector<pid_t> workers() const;    // the ranks' processes, by host pid
  std::vector<pid_t> processes() const;  // all that carry the mark

  // What was written so far.
  std::string out() const;
  std::string err() const;
  bool wait_for_output(const std::string& part, int times);

  void kill(int signal) { process_.kill(signal); }

  // Its end; a failure of the test if there is none within `patience`.
  base::ExitStatus wait(std::chrono::seconds patience = kPatience);

  // True once nobody is left.
  bool is_gone() const;

 private:
  TempFolder folder_;
  std::string mark_;
  base::Process process_;
};

}  // namespace lockstep::test
