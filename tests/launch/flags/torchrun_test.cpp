// torchrun's flags and variables, as `lockstep run` obeys them.

#include <filesystem>
#include <regex>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/process/cores.h"
#include "base/unique_fd.h"
#include "launch/node/gpus.h"
#include "support/job.h"
#include "support/paths.h"

namespace lockstep::test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
namespace fs = std::filesystem;

std::string attempt_folder(const std::string& log_dir) {
  const fs::path job = fs::directory_iterator(log_dir)->path();
  return job / "attempt_0";
}

std::set<std::string> flags_in(const std::string& text) {
  std::set<std::string> flags;
  const std::regex shape("--[a-z][a-z-]+");
  for (std::sregex_iterator it(text.begin(), text.end(), shape), end; it != end; ++it) {
    flags.insert(it->str());
  }
  return flags;
}

// The first cells of the tables of a page.
std::string first_cells(const std::string& page) {
  std::string cells;
  for (const std::string& line : lines(page)) {
    if (line.starts_with("| ")) {
      cells += line.substr(0, line.find(" | ", 2)) + "\n";
    }
  }
  return cells;
}

TEST(Torchrun, EveryFlagIsKnownAndInTheTable) {
  const std::set<std::string> torchrun = flags_in(
      "--nnodes --nproc-per-node --rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf --standalone "
      "--max-restarts --monitor-interval --start-method --event-log-handler --role --module "
      "--no-python --run-path --log-dir --redirects --tee --local-ranks-filter "
      "--duplicate-stdout-filters --duplicate-stderr-filters --node-rank --master-addr "
      "--master-port --local-addr --logs-specs --numa-binding --signals-to-handle "
      "--virtual-local-rank --shutdown-timeout");
  const std::string folder = testing_support::in_tree("docs/concepts/");
  const std::set<std::string> known = flags_in(run_lockstep({"run", "--help"}).out);
  for (const char* name : {"torchrun.md", "torchrun.ko.md"}) {
    const std::set<std::string> documented = flags_in(first_cells(base::read_file(folder + name)));
    for (const std::string& flag : torchrun) {
      EXPECT_THAT(known, Contains(flag));
      EXPECT_THAT(documented, Contains(flag)) << name;
    }
    for (const std::string& flag : documented) {
      EXPECT_THAT(known, Contains(flag)) << name;
    }
  }
}

TEST(Torchrun, FlagsComeFromTheEnvironmentToo) {
  const std::map<std::string, std::string> env{{"PET_NPROC_PER_NODE", "2"}, {"PET_NO_PREFIX", "1"}};
  EXPECT_EQ(run_lockstep({"run", "echo", "x"}, env).out, "x\nx\n");
  EXPECT_EQ(run_lockstep({"run", "--nproc_per_node=1", "echo", "x"}, env).out, "x\n");
  EXPECT_EQ(run_lockstep({"run", "echo", "x"}, {{"PET_NO_PREFIX", "0"}}).out, "r0: x\n");
  const base::Output mistake = run_lockstep({"run", "echo", "x"}, {{"PET_NNODES", "many"}});
  EXPECT_EQ(mistake.status.code, 2);
  EXPECT_THAT(mistake.err, HasSubstr("--nnodes many is neither"));
  EXPECT_THAT(mistake.err, HasSubstr("set in the environment: PET_NNODES"));
}

TEST(Torchrun, PlaceholdersAreEachRanksOwn) {
  const base::Output output = run_lockstep(
      {"run", "--local-nodes", "2", "--no-prefix", "echo", "{rank}-{local_rank}/{world_size}"});
  EXPECT_THAT(lines(output.out), UnorderedElementsAre("0-0/2", "1-0/2"));
}

TEST(Torchrun, PythonInAllItsForms) {
  if (base::run_process({.argv = {"sh", "-c", "command -v python3"}},
                        base::Deadline::after(kPatience))
          .out.empty()) {
    GTEST_SKIP() << "no python3";
  }
  TempFolder folder;
  const std::string script =
      folder.file("script.py", "import sys\nprint(__name__, sys.argv[1:])\n");
  const std::string expected = "r0: __main__ ['a', '--b']\n";
  const std::map<std::string, std::string> env{{"PYTHONPATH", folder.path()},
                                               {"PYTHONDONTWRITEBYTECODE", "1"}};
  EXPECT_EQ(run_lockstep({"run", script, "a", "--b"}, env).out, expected);
  EXPECT_EQ(run_lockstep({"run", "-m", "script", "a", "--b"}, env).out, expected);
  EXPECT_EQ(run_lockstep({"run", "--run-path", script, "a", "--b"}, env).out, expected);
  EXPECT_EQ(run_lockstep({"run", "--no-python", script}).status.code, 126);
  const std::string plain = folder.file("plain", base::read_file(script));
  fs::create_directory(folder.at("package"));
  folder.file("package/__main__.py", base::read_file(script));
  EXPECT_EQ(run_lockstep({"run", plain, "a", "--b"}, env).out, expected);
  EXPECT_EQ(run_lockstep({"run", folder.at("package"), "a", "--b"}, env).out, expected);
  EXPECT_EQ(run_lockstep({"run", "--no-python", plain}).status.code, 126);
  EXPECT_EQ(run_lockstep({"run", script}, {{"PYTHON_EXEC", "echo"}}).out,
            "r0: -u " + script + "\n");
}

TEST(Torchrun, OfAFlagGivenTwiceTheLastCounts) {
  const base::Output output =
      run_lockstep({"run", "--nproc-per-node=8", "--nproc_per_node", "2", "--no-prefix",
                    "--no-prefix", "--stop-grace=1", "--shutdown-timeout=2", "echo", "hi"});
  EXPECT_EQ(output.status.code, 0) << output.err;
  EXPECT_EQ(output.out, "hi\nhi\n");
  EXPECT_EQ(run_lockstep({"run", "--max-restarts=0", "--max-restarts=x", "true"}).status.code, 2);
}

TEST(Torchrun, RedirectsAndTeeByLocalRank) {
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"-r", "0:3", "-t", "1:1"}, {"-r0:3", "-t1:1"}, {"--redirects=0:3", "--tee", "1:1"}}) {
    TempFolder folder;
    std::vector<std::string> arguments{"run", "--nproc-per-node", "2", "--log-dir", folder.path()};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    arguments.insert(arguments.end(), {"sh", "-c", "echo out; echo err >&2"});
    const base::Output output = run_lockstep(arguments);
    EXPECT_EQ(output.out, "r1: out\n");
    EXPECT_EQ(output.err, "r1: err\n");
    const std::string place = attempt_folder(folder.path());
    EXPECT_EQ(base::read_file(place + "/rank_0/stdout.log"), "out\n");
    EXPECT_EQ(base::read_file(place + "/rank_0/stderr.log"), "err\n");
    EXPECT_EQ(base::read_file(place + "/rank_1/stdout.log"), "out\n");
    EXPECT_FALSE(fs::exists(place + "/rank_1/stderr.log"));
  }
}

TEST(Torchrun, AFullDiskUnderARedirectCostsTheLogOnly) {
  TempFolder folder;
  const base::Output output = base::run_process(
      {.argv = {"sh", "-c",
                "ulimit -f 1; exec " + lockstep_program() + " run -r 3 --log-dir " + folder.path() +
                    " sh -c 'seq 1 4000; exit 3'"}},
      base::Deadline::after(kPatience));
  EXPECT_EQ(output.status.code, 3);
  EXPECT_EQ(output.out, "");
  EXPECT_EQ(count(output.err, "going on without this log file"), 1) << output.err;
}

TEST(Torchrun, RedirectsWithoutAFolderMakeOneAndSayWhere) {
  TempFolder folder;
  const base::Output output =
      run_lockstep({"run", "--redirects", "3", "echo", "hi"}, {{"TMPDIR", folder.path()}});
  EXPECT_EQ(output.out, "");
  EXPECT_EQ(count(output.err, "log files are in " + folder.path() + "/lockstep_logs_"), 1)
      << output.err;
  const fs::path made = fs::directory_iterator(folder.path())->path();
  EXPECT_EQ(base::read_file(attempt_folder(made) + "/rank_0/stdout.log"), "hi\n");
  const base::Output refused =
      run_lockstep({"run", "-r", "3", "echo", "hi"}, {{"TMPDIR", folder.path() + "/none"}});
  EXPECT_EQ(refused.status.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("--log-dir chooses another folder"));
}

TEST(Torchrun, LocalRanksFilterIsForTheConsole) {
  TempFolder folder;
  const base::Output output =
      run_lockstep({"run", "--local-nodes", "2", "--nproc-per-node", "3", "--local-ranks-filter",
                    "0,2", "--log-dir", folder.path(), "--no-prefix", "sh", "-c", "echo $RANK"});
  EXPECT_THAT(lines(output.out), UnorderedElementsAre("0", "2", "3", "5"));
  EXPECT_EQ(base::read_file(attempt_folder(folder.path()) + "/rank_1/stdout.log"), "1\n");
}

TEST(Torchrun, DuplicateFiltersCopyLines) {
  TempFolder folder;
  run_lockstep({"run", "--log-dir", folder.path(), "--duplicate-stdout-filters", "loss,lr",
                "--duplicate-stderr-filters", "warn", "sh", "-c",
                "echo loss 1; echo other; printf 'lr 2'; echo a warning >&2; echo loss >&2"});
  const std::string place = attempt_folder(folder.path());
  EXPECT_EQ(base::read_file(place + "/filtered_stdout_n0.log"), "r0: loss 1\nr0: lr 2\n");
  EXPECT_EQ(base::read_file(place + "/filtered_stderr_n0.log"), "r0: a warning\n");
}

TEST(Torchrun, PrefixTemplate) {
  const base::Output output = run_lockstep(
      {"run", "--role", "actor", "echo", "hi"},
      {{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[${role_name}${local_rank} ${rank}] "}});
  EXPECT_EQ(output.out, "[actor0 0] hi\n");
}

TEST(Torchrun, AnErrorFileIsReadAndRemovedOrKeptInTheLogs) {
  TempFolder folder;
  const std::string script =
      "echo $TORCHELASTIC_ERROR_FILE; echo '{\"message\": \"E\"}' > $TORCHELASTIC_ERROR_FILE; exit "
      "1";
  const std::map<std::string, std::string> env{{"TMPDIR", folder.path()}, {"XDG_RUNTIME_DIR", ""}};
  const base::Output output = run_lockstep({"run", "--no-prefix", "sh", "-c", script}, env);
  EXPECT_THAT(output.out, HasSubstr(folder.path() + "/lockstep_error_"));
  EXPECT_TRUE(fs::is_empty(folder.path()));
  run_lockstep({"run", "--log-dir", folder.path(), "sh", "-c", script}, env);
  EXPECT_THAT(base::read_file(attempt_folder(folder.path()) + "/rank_0/error.json"),
              HasSubstr("E"));
}

TEST(Torchrun, RanksAreBoundToTheirOwnCores) {
  const std::string script = "grep Cpus_allowed_list /proc/self/status";
  const base::Output one = run_lockstep({"run", "--bind", "auto", "sh", "-c", script});
  EXPECT_EQ(one.status.code, 0) << one.err;
  EXPECT_THAT(one.err, HasSubstr("each rank bound to cores of its own"));
  const base::Output refused =
      run_lockstep({"run", "--bind", "core", "--nproc-per-node", "1024", "true"});
  EXPECT_EQ(refused.status.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("a rank would have no core of its own"));
  const base::Output two = run_lockstep(
      {"run", "--bind", "core", "--nproc-per-node", "2", "--no-prefix", "sh", "-c", script});
  if (two.status.code == 2) {
    GTEST_SKIP() << "this host has one core";
  }
  const std::vector<std::string> out = lines(two.out);
  const std::set<std::string> sets(out.begin(), out.end());
  EXPECT_EQ(sets.size(), 2u) << two.out;
}

TEST(Torchrun, VirtualLocalRankShowsEachRankOneGpu) {
  const base::Output output = run_lockstep({"run", "--nproc-per-node", "2", "--virtual-local-rank",
                                            "sh", "-c", "echo $LOCAL_RANK $CUDA_VISIBLE_DEVICES"},
                                           {{"CUDA_VISIBLE_DEVICES", "5,7"}});
  EXPECT_THAT(lines(output.out), UnorderedElementsAre("r0: 0 5", "r1: 0 7"));
  const base::Output refused =
      run_lockstep({"run", "--nproc-per-node", "3", "--virtual-local-rank", "true"},
                   {{"CUDA_VISIBLE_DEVICES", "5,7"}});
  EXPECT_EQ(refused.status.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("names 2 GPUs, none for rank 2"));
}

TEST(Torchrun, AutoCountsGpusFirst) {
  const std::vector<std::string> arguments{"run", "--nproc-per-node", "auto", "--no-prefix", "echo",
                                           "x"};
  const auto gpus = launch::visible_gpus("", std::nullopt);  // of this machine
  const base::Output all = run_lockstep(arguments, {{"LOCKSTEP_DEVICE", "auto"}});
  const size_t expected =
      gpus.empty() ? static_cast<size_t>(base::num_usable_cores()) : gpus.size();
  EXPECT_EQ(lines(all.out).size(), expected) << all.err;
  const base::Output none =
      run_lockstep({"run", "--nproc-per-node", "gpu", "true"}, {{"CUDA_VISIBLE_DEVICES", ""}});
  EXPECT_EQ(none.status.code, 2);
  EXPECT_THAT(none.err, HasSubstr("there is no GPU here"));
}

}  // namespace
}  // namespace lockstep::test
