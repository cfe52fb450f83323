#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "launch/scheduler/emit.h"
#include "launch/scheduler/slurm.h"

namespace lockstep::launch {

namespace {

constexpr size_t kMaxSlurmName = 64;

bool is_any_of(char letter, std::string_view letters) {
  return letters.find(letter) != std::string_view::npos;
}

// One word for bash whatever is in it, on one line: sbatch refuses a script with "\r\n" in it.
std::string bash_word(const std::string& text) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || is_any_of(static_cast<char>(c), "_-./,:@%+=");
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), is_plain)) {
    return text;
  }
  const bool has_control =
      std::any_of(text.begin(), text.end(), [](unsigned char c) { return std::iscntrl(c) != 0; });
  std::string word = has_control ? "$'" : "'";
  for (const char letter : text) {
    if (has_control && std::iscntrl(static_cast<unsigned char>(letter)) != 0) {
      word += fmt::format("\\{:03o}", static_cast<unsigned char>(letter));
    } else if (has_control && is_any_of(letter, "'\\")) {
      word += std::string("\\") + letter;
    } else {
      word += letter == '\'' ? "'\\''" : std::string(1, letter);
    }
  }
  return word + "'";
}

// What sbatch reads are comments for bash: nothing in them is quoted, so nothing may need it.
void check_slurm_options(const EmitOptions& options) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || is_any_of(static_cast<char>(c), "_-.");
  };
  const std::string& name = options.job_name;
  if (name.empty() || name.size() > kMaxSlurmName ||
      !std::all_of(name.begin(), name.end(), is_plain)) {
    throw UsageError(
        "--emit slurm: '{}' is no job name; use up to {} letters, digits, '-', '_', "
        "'.'",
        name, kMaxSlurmName);
  }
  check_emit_options(options, "slurm");
}

std::string time_text(std::chrono::seconds limit) {
  const auto seconds = limit.count();
  return fmt::format("{}-{:02}:{:02}:{:02}", seconds / 86400, seconds / 3600 % 24,
                     seconds / 60 % 60, seconds % 60);
}

std::string directives(const EmitOptions& options) {
  const bool is_range = options.max_nodes > options.num_nodes;
  std::string text = fmt::format(
      "#SBATCH --job-name={}\n"
      "#SBATCH --nodes={}\n"
      "#SBATCH --ntasks-per-node=1  # one `lockstep run` on each, which starts the ranks\n",
      options.job_name,
      is_range ? fmt::format("{}-{}  # as many as are free when it starts, and no others later",
                             options.num_nodes, options.max_nodes)
               : std::to_string(options.num_nodes));
  if (options.cpus_per_node > 0) {
    text += fmt::format("#SBATCH --cpus-per-task={}\n", options.cpus_per_node);
  } else {
    text +=
        "#SBATCH --exclusive  # whole nodes; else --cpus-per-task, or it gets one core of each\n";
  }
  if (options.gpus_per_node > 0) {
    text += fmt::format("#SBATCH --gpus-per-node={}\n", options.gpus_per_node);
  }
  if (options.time_limit.count() > 0) {
    text += fmt::format("#SBATCH --time={}\n", time_text(options.time_limit));
  }
  return text;
}

std::vector<std::string> run_words(const EmitOptions& options) {
  std::vector<std::string> words{options.program,    "run",
                                 "--nproc-per-node", options.procs_per_node,
                                 "--stop-grace",     std::to_string(options.stop_grace.count())};
  words.insert(words.end(), options.flags.begin(), options.flags.end());
  if (!options.image.empty()) {
    words.insert(words.end(), {"--image", options.image});
  }
  for (const auto& mount : options.mounts) {
    words.insert(words.end(), {"--mount", mount});
  }
  words.push_back("--");
  words.insert(words.end(), options.command.begin(), options.command.end());
  return words;
}

std::string joined(const std::vector<std::string>& words) {
  std::string line;
  for (const auto& word : words) {
    line += (line.empty() ? "" : " ") + bash_word(word);
  }
  return line;
}

constexpr const char* kScript = R"(#!/bin/bash
# Written by `lockstep run --emit slurm`. Submit it: sbatch FILE
{directives}#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
# Signals go to each `lockstep run`, which agrees with the others on the step after which to act:
#   SIGTERM  checkpoint and stop (exit code 143); here {grace} seconds before the time limit,
#            instead of Slurm's own SIGTERM at the limit, which leaves as little as 30;
#            --stop-grace below gives the ranks the same time
#   SIGUSR1  checkpoint and go on: scancel --signal=USR1 JOBID
#SBATCH --signal=TERM@{grace}

# Whoever has the job's secret can join the job. It reaches the nodes in the step's environment,
# never on a command line.
LOCKSTEP_JOB_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export LOCKSTEP_JOB_SECRET
{folder}
srun {flags} \
  {run}
status=$?

# To go on in a new time slot (a program that loads its last checkpoint), take away the '#' below.
# [ $status -ne 143 ] || scontrol requeue "$SLURM_JOB_ID"
exit $status
)";

}  // namespace

std::string emit_slurm(const EmitOptions& options) {
  check_slurm_options(options);
  return fmt::format(
      kScript, fmt::arg("directives", directives(options)), fmt::arg("flags", joined(srun_flags())),
      fmt::arg("grace", std::max<int64_t>(1, options.stop_grace.count())),
      fmt::arg("folder", options.folder.empty()
                             ? ""
                             : fmt::format("cd {} || exit 1\n", bash_word(options.folder))),
      fmt::arg("run", joined(run_words(options))));
}

}  // namespace lockstep::launch
