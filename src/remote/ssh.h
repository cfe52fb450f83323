#pragma once

// The ssh command that starts lockstep on another host, and what goes with it.

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "base/env.h"
#include "remote/hosts.h"

namespace lockstep::remote {

struct SshOptions {
  std::vector<std::string> program{"ssh"};   // and options of the user's own, which come first
  std::chrono::seconds connect_timeout{10};  // until the host's ssh server answers
  std::chrono::seconds alive_timeout{15};    // of silence: the connection is given up

  // LOCKSTEP_SSH ("ssh -p 2222 -i 'my key'", cut into words as a shell does) replaces the program.
  // It takes ssh's arguments. Throws UsageError.
  static SshOptions from_env(const base::Env& env);
};

// Runs `command` on the host without a terminal and without ever asking for anything: a password
// or an unknown host key is a failure. Whom to trust, ports, keys and jumps are the user's
// configuration of ssh; options in `program` win over lockstep's.
std::vector<std::string> ssh_command(const HostEntry& host, const SshOptions& options,
                                     const std::vector<std::string>& command);

// The host's lockstep with `arguments`: the one at `path` (this host's) if it is there, else the
// one in PATH. A command for any login shell; exit code 127 if there is none.
std::vector<std::string> remote_lockstep(const std::string& path,
                                         const std::vector<std::string>& arguments);

// Quotes for a POSIX shell: 'it'\''s' is one word whatever is in it. No argument may hold a NUL.
std::string shell_quoted(const std::string& word);
std::string shell_command(const std::vector<std::string>& words);

// The other way: splits into words between blanks; '', "" and \ as in a POSIX shell, but nothing is
// replaced ($, `, * and ~ stand for themselves). Throws UsageError that names `what`.
std::vector<std::string> split_words(const std::string& text, const std::string& what);

// The part of this process's environment that goes with a job to other hosts: LOCKSTEP_*, PATH,
// LD_LIBRARY_PATH, PYTHONPATH, OMP_*, NCCL_*, GLOO_*, TORCH_*, CUDA_* and what `named` names, as
// NAME or as NAME=VALUE. Nothing else: a host has its own HOME, and secrets of other programs stay.
// `environment` is NAME=value, as environ(7). Throws UsageError for a NAME that is not set, and for
// a value that is not UTF-8 (it travels as JSON).
std::map<std::string, std::string> travelling_environment(
    const std::vector<std::string>& environment, const std::vector<std::string>& named);

}  // namespace lockstep::remote
