// What the ranks write, on the console and in log files.

#include <fcntl.h>
#include <filesystem>
#include <map>
#include <poll.h>
#include <regex>
#include <set>
#include <signal.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/secret.h"
#include "base/socket.h"
#include "support/job.h"
#include "support/service.h"

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;
namespace fs = std::filesystem;

base::Output shell(const std::string& script) {
  return base::run_process({.argv = {"sh", "-c", script}}, base::Deadline::after(kPatience));
}

TEST(Output, BothStreamsKeepTheirPlaceAndGetAPrefix) {
  const base::Output output = run_lockstep({"run", "sh", "-c", "echo out; echo err >&2"});
  EXPECT_EQ(output.out, "r0: out\n");
  EXPECT_EQ(output.err, "r0: err\n");
}

TEST(Output, NoPrefixPassesEveryByte) {
  const base::Output output =
      run_lockstep({"run", "--no-prefix", "printf", "a\\n\\r\\n\\n b\\r10%%\\rlast"});
  EXPECT_EQ(output.out, "a\n\r\n\n b\r10%\rlast");
}

TEST(Output, AnUnfinishedLastLineIsWritten) {
  const base::Output output = run_lockstep({"run", "printf", "one\\ntwo"});
  EXPECT_EQ(output.out, "r0: one\nr0: two\n");
}

TEST(Output, ProgressLinesPassThrough) {
  const base::Output output = run_lockstep({"run", "printf", "10%%\\r20%%\\r\\ndone\\n"});
  EXPECT_EQ(output.out, "r0: 10%\rr0: 20%\rr0: \nr0: done\n");
}

// tqdm begins with a carriage return; it used to end the agent, and the job with it.
TEST(Output, ARedrawMayBeTheFirstOutput) {
  const base::Output output =
      run_lockstep({"run", "--nproc-per-node", "2", "sh", "-c",
                    "printf '\\r 0%%' >&2; printf '\\r10%%\\n' >&2; printf '\\r'; exit $RANK"});
  EXPECT_EQ(output.status.code, 1) << output.err;
  EXPECT_THAT(output.err, HasSubstr("r1:  0%"));
  EXPECT_THAT(output.err, HasSubstr("r1: 10%\n"));
  EXPECT_THAT(output.err, HasSubstr("  its last output:\n    10%\n"));
}

TEST(Output, TheReportKeepsTheLineBeforeABar) {
  const base::Output output =
      run_lockstep({"run", "sh", "-c", "echo epoch 1; printf '\\r 0%%'; printf '\\r10%%'; exit 3"});
  EXPECT_EQ(output.status.code, 3);
  EXPECT_THAT(output.err, HasSubstr("  its last output:\n    epoch 1\n    10%\n"));
}

// A rank that goes on once `path` exists.
std::string wait_for(const std::string& path) {
  return "until [ -e " + path + " ]; do sleep 0.01; done; ";
}

TEST(Output, AnUnfinishedLineIsShown) {
  TempFolder folder;
  const std::string go = folder.path() + "/go";
  Job job({"sh", "-c", "printf 'Loading... '; " + wait_for(go) + "echo done"});
  EXPECT_TRUE(job.wait_for_output("r0: Loading... ", 1));
  folder.file("go", "");
  EXPECT_EQ(job.wait().code, 0);
  EXPECT_EQ(job.out(), "r0: Loading... done\n");
}

TEST(Output, AnUnfinishedLineIsEndedByAnothers) {
  TempFolder folder;
  const std::string hello = folder.path() + "/hello", done = folder.path() + "/done";
  Job job({"--nproc-per-node", "2", "sh", "-c",
           "[ $RANK = 1 ] && { " + wait_for(hello) + "echo hello; exit; }; printf 'Loading... '; " +
               wait_for(done) + "echo done"});
  EXPECT_TRUE(job.wait_for_output("r0: Loading... ", 1));
  folder.file("hello", "");
  EXPECT_TRUE(job.wait_for_output("hello", 1));
  folder.file("done", "");
  EXPECT_EQ(job.wait().code, 0);
  EXPECT_EQ(job.out(), "r0: Loading... \nr1: hello\nr0: done\n");
}

TEST(Output, ABarIsNotOneRedrawLate) {
  TempFolder folder;
  const std::string go = folder.path() + "/go";
  Job job({"sh", "-c", "printf '\\r10%%'; " + wait_for(go) + "printf '\\r20%%\\n'"});
  EXPECT_TRUE(job.wait_for_output("r0: 10%", 1));
  folder.file("go", "");
  EXPECT_EQ(job.wait().code, 0);
  EXPECT_EQ(job.out(), "\rr0: 10%\rr0: 20%\n");
}

// As tqdm draws on every rank: it returns first, then draws, and ends its line at last.
TEST(Output, BarsOfSeveralRanksComeToTheirEnd) {
  const base::Output output =
      run_lockstep({"run", "--nproc-per-node", "3", "sh", "-c",
                    "echo epoch 1 >&2; i=0; while [ $i -le 100 ]; do printf '\\r%3d%%|##' $i >&2; "
                    "i=$((i+10)); done; echo >&2; echo after"});
  EXPECT_EQ(output.status.code, 0) << output.err;
  for (const int rank : {0, 1, 2}) {
    EXPECT_THAT(output.err, HasSubstr(fmt::format("r{}: epoch 1\n", rank)));
    EXPECT_THAT(output.err, HasSubstr(fmt::format("r{}:   0%|##", rank)));
    EXPECT_THAT(output.err, HasSubstr(fmt::format("r{}: 100%|##", rank)));
    EXPECT_THAT(output.out, HasSubstr(fmt::format("r{}: after\n", rank)));
  }
}

// Nobody reads what the ranks write, nor what the launcher says.
class FrozenReader : public ::testing::TestWithParam<bool> {};

TEST_P(FrozenReader, DoesNotHoldUpTheStop) {
  base::FdPair out = base::make_pipe(), err = base::make_pipe();
  const bool both = GetParam();
  base::Process process({.argv = {lockstep_program(), "run", "--nproc-per-node", "2", "sh", "-c",
                                  both ? "yes >&2 & exec yes" : "exec yes"},
                         .stdout_fd = out.write.get(),
                         .stderr_fd = err.write.get(),
                         .new_group = true});
  const auto is_full = [](const base::FdPair& pipe) {
    pollfd room{.fd = pipe.write.get(), .events = POLLOUT, .revents = 0};
    return ::poll(&room, 1, 0) == 0;
  };
  ASSERT_TRUE(wait_until([&] { return is_full(out) && (!both || is_full(err)); }));
  const auto told = base::Clock::now();
  process.kill(SIGTERM);
  const auto status = process.wait(base::Deadline::after(kPatience));
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->code, 143);
  EXPECT_LT(base::Clock::now() - told, std::chrono::seconds(8)) << "the grace alone is 10 s";
}

// The shell runs its trap when what it waits for has written all it has to say.
TEST_P(FrozenReader, LetsTheRanksSaveTheirState) {
  TempFolder folder;
  base::FdPair out = base::make_pipe(), err = base::make_pipe();
  const std::string talk = "setsid head -c 3000000 /dev/zero; ";
  const std::string complain = GetParam() ? "setsid head -c 3000000 /dev/zero >&2; " : "";
  base::Process process({.argv = {lockstep_program(), "run", "--nproc-per-node", "2", "sh", "-c",
                                  fmt::format("cd {}; trap 'echo > saved$RANK; exit 0' TERM; "
                                              "echo > up$RANK; {}{}sleep 1000",
                                              folder.path(), talk, complain)},
                         .stdout_fd = out.write.get(),
                         .stderr_fd = err.write.get(),
                         .new_group = true});
  ASSERT_TRUE(wait_until([&] {
    pollfd room{.fd = out.write.get(), .events = POLLOUT, .revents = 0};
    return ::poll(&room, 1, 0) == 0 && fs::exists(folder.at("up0")) && fs::exists(folder.at("up1"));
  }));
  const auto told = base::Clock::now();
  process.kill(SIGTERM);
  const auto status = process.wait(base::Deadline::after(kPatience));
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->code, 143);
  EXPECT_LT(base::Clock::now() - told, std::chrono::seconds(8)) << "the grace alone is 10 s";
  EXPECT_TRUE(fs::exists(folder.at("saved0")) && fs::exists(folder.at("saved1")));
}

INSTANTIATE_TEST_SUITE_P(Streams, FrozenReader, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "both" : "output"; });

// The signal comes to one node; nobody reads what the other one says either.
TEST(FrozenReaders, DoNotHoldUpTheOtherNodes) {
  const std::map<std::string, std::string> env{{"LOCKSTEP_JOB_SECRET", base::make_secret()}};
  for (const size_t told_node : {0, 1}) {
    const uint16_t port = base::Listener({"127.0.0.1", 0}).endpoint().port;
    base::FdPair pipes[2] = {base::make_pipe(), base::make_pipe()};
    base::Process nodes[2];
    for (size_t node = 0; node < 2; ++node) {
      nodes[node] = base::Process(
          {.argv = {lockstep_program(), "run", "--nnodes=2", fmt::format("--node-rank={}", node),
                    "--master-addr=127.0.0.1", fmt::format("--master-port={}", port), "yes"},
           .env = env,
           .stdout_fd = pipes[node].write.get(),
           .stderr_fd = pipes[node].write.get(),
           .new_group = true});
    }
    for (const base::FdPair& pipe : pipes) {
      ASSERT_TRUE(wait_until([&] {
        pollfd room{.fd = pipe.write.get(), .events = POLLOUT, .revents = 0};
        return ::poll(&room, 1, 0) == 0;
      }));
    }
    nodes[told_node].kill(SIGTERM);
    for (base::Process& node : nodes) {
      const auto status = node.wait(base::Deadline::after(std::chrono::seconds(8)));
      ASSERT_TRUE(status.has_value()) << "the grace alone is 10 s; told was node " << told_node;
      EXPECT_EQ(status->code, 143);
    }
  }
}

// A stranger at the job's port is a line of the log. It used to stop the launcher for good.
TEST(Output, TheLogDoesNotWaitForAReader) {
  base::FdPair out = base::make_pipe(), err = base::make_pipe();
  ::fcntl(err.write.get(), F_SETFL, O_NONBLOCK);
  const std::string filling(4096, 'x');
  while (::write(err.write.get(), filling.data(), filling.size()) > 0) {
  }
  ::fcntl(err.write.get(), F_SETFL, 0);
  base::Process process(
      {.argv = {lockstep_program(), "run", "--no-prefix", "--nproc-per-node", "2", "sh", "-c",
                "[ $RANK = 1 ] || echo $LOCKSTEP_STORE; exec sleep 1000"},
       .stdout_fd = out.write.get(),
       .stderr_fd = err.write.get(),
       .new_group = true});
  std::string store;
  for (char byte = 0; ::read(out.read.get(), &byte, 1) == 1 && byte != '\n';) {
    store += byte;
  }
  const base::Deadline deadline = base::Deadline::after(kPatience);
  base::Socket stranger =
      base::Socket::connect(base::Endpoint::parse(store, "the store"), deadline);
  const std::string_view greeting = "GET / HTTP/1.1\r\n\r\n";
  stranger.send(greeting.data(), greeting.size(), deadline);
  char byte = 0;
  EXPECT_THROW(stranger.receive(&byte, 1, deadline), IoError) << "it is not sent away";
  process.kill(SIGTERM);
  const auto status = process.wait(base::Deadline::after(kPatience));
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->code, 143);
}

TEST(Output, ALimitOfFilesIsNamed) {
  const base::Output output =
      shell("ulimit -n 24; exec " + lockstep_program() + " run --nproc-per-node 16 true");
  EXPECT_EQ(output.status.code, 1);
  EXPECT_THAT(output.err, HasSubstr("`ulimit -n`"));
  EXPECT_THAT(output.err, HasSubstr("24"));
}

TEST(Output, TeeDoesWithoutAFolderThatItMayWriteTo) {
  const std::string run = lockstep_program() + " run --tee 3 echo hi";
  const std::string hide = "for d in /tmp /var/tmp; do mount -t tmpfs -o ro none $d; done; ";
  const base::Output trial = shell("unshare -m sh -c '" + hide + "'");
  LOCKSTEP_NEEDS("namespaces", trial.status.ok() ? std::nullopt : std::optional(trial.err));
  const base::Output output =
      shell("unset XDG_RUNTIME_DIR TMPDIR; unshare -m sh -c '" + hide + run + "'");
  EXPECT_EQ(output.status.code, 0) << output.err;
  EXPECT_EQ(output.out, "r0: hi\n");
  EXPECT_THAT(output.err, HasSubstr("Read-only file system"));
  EXPECT_THAT(output.err, HasSubstr("--log-dir"));
}

TEST(Output, LogFilesGoToTheNextTemporaryFolderThatTakesThem) {
  const std::string hide = "mount -t tmpfs -o ro none /tmp; mount -t tmpfs none /var/tmp; ";
  const base::Output trial = shell("unshare -m sh -c '" + hide + "'");
  LOCKSTEP_NEEDS("namespaces", trial.status.ok() ? std::nullopt : std::optional(trial.err));
  const base::Output output = shell("unset XDG_RUNTIME_DIR TMPDIR; unshare -m sh -c '" + hide +
                                    lockstep_program() + " run --redirects 3 echo hi'");
  EXPECT_EQ(output.status.code, 0) << output.err;
  EXPECT_THAT(output.err, HasSubstr("log files are in /var/tmp/lockstep_logs_"));
}

TEST(Output, LinesAreNeverTorn) {
  constexpr int kLines = 10000;
  for (const std::string nodes : {"1", "2"}) {
    const base::Output output = run_lockstep(
        {"run", "--local-nodes", nodes, "--nproc-per-node", "4", "sh", "-c",
         fmt::format("seq -f \"line-$RANK-%06.0f-{}-end\" 1 {}", std::string(100, 'x'), kLines)});
    ASSERT_EQ(output.status.code, 0) << output.err;
    std::map<std::string, int> next;
    const std::regex shape("(n[0-9] )?r([0-9]): line-([0-9])-([0-9]{6})-x{100}-end");
    for (const std::string& line : lines(output.out)) {
      std::smatch match;
      ASSERT_TRUE(std::regex_match(line, match, shape)) << line;
      ASSERT_EQ(match[2], match[3]);
      ASSERT_EQ(std::stoi(match[4]), ++next[match[2]]) << "lines of a rank stay in order";
    }
    EXPECT_EQ(next.size(), nodes == "1" ? 4u : 8u);
    for (const auto& [rank, last] : next) {
      EXPECT_EQ(last, kLines) << "rank " << rank;
    }
  }
}

// Longer than a pipe takes in one piece, from two agents at once.
TEST(Output, LongLinesOfTwoNodesAreNotTornEither) {
  const base::Output output =
      run_lockstep({"run", "--local-nodes", "2", "sh", "-c",
                    "i=0; while [ $i -lt 40 ]; do head -c 30000 /dev/zero | tr "
                    "'\\0' $RANK; echo; i=$((i+1)); done"});
  const auto out = lines(output.out);
  ASSERT_EQ(out.size(), 80u);
  for (const std::string& line : out) {
    const char rank = line[1];
    ASSERT_EQ(line, fmt::format("n{0} r{0}: {1}", rank, std::string(30000, rank)));
  }
}

TEST(Output, EndlessLinesAreCut) {
  const base::Output output =
      run_lockstep({"run", "sh", "-c", "head -c 200000 /dev/zero | tr '\\0' x; echo"});
  const auto out = lines(output.out);
  EXPECT_EQ(out.size(), 4u);
  EXPECT_EQ(count(output.out, "x"), 200000);
  for (const std::string& line : out) {
    EXPECT_TRUE(line.starts_with("r0: x")) << line.substr(0, 10);
  }
}

TEST(Output, LogFilesHoldEachRanksStreams) {
  TempFolder folder;
  // Rank 1 fails only when rank 0 has written: a failure stops the others.
  const base::Output output = run_lockstep(
      {"run", "--log-dir", folder.path() + "/new/logs", "--nproc-per-node", "2", "sh", "-c",
       "echo out $RANK; echo err $RANK >&2; echo $TORCHELASTIC_ERROR_FILE; "
       "[ $RANK = 0 ] && exec touch " +
           folder.path() +
           "/written; "
           "until [ -e " +
           folder.path() + "/written ]; do :; done; exit 1"});
  EXPECT_EQ(output.status.code, 1);
  std::vector<fs::path> jobs;
  for (const auto& entry : fs::directory_iterator(folder.path() + "/new/logs")) {
    jobs.push_back(entry.path());
  }
  ASSERT_EQ(jobs.size(), 1u);
  for (const int rank : {0, 1}) {
    const std::string place = jobs[0] / "attempt_0" / fmt::format("rank_{}", rank);
    EXPECT_EQ(base::read_file(place + "/stdout.log"),
              fmt::format("out {}\n{}/error.json\n", rank, place));
    EXPECT_EQ(base::read_file(place + "/stderr.log"), fmt::format("err {}\n", rank));
  }
  EXPECT_THAT(output.err,
              HasSubstr("all of its output: " + (jobs[0] / "attempt_0" / "rank_1").string()));
}

TEST(Output, RunsOfOneNameKeepTheirLogsAndErrorsApart) {
  TempFolder folder;
  const std::string dir = folder.at("logs");
  const auto run = [&](const std::string& script) {
    return run_lockstep({"run", "--rdzv-id", "nightly", "--log-dir", dir, "sh", "-c", script});
  };
  const base::Output first =
      run("echo first; echo '{\"message\": \"stale\"}' > $TORCHELASTIC_ERROR_FILE; exit 1");
  EXPECT_THAT(first.err, HasSubstr("stale"));
  const base::Output second = run("echo second; exit 1");
  EXPECT_THAT(second.err, Not(HasSubstr("stale")));
  std::set<std::string> kept;
  for (const auto& job : fs::directory_iterator(dir)) {
    EXPECT_THAT(job.path().filename().string(), StartsWith("nightly_"));
    EXPECT_EQ(fs::status(job).permissions(), fs::perms::owner_all);
    kept.insert(base::read_file(job.path() / "attempt_0/rank_0/stdout.log"));
  }
  EXPECT_THAT(kept, ElementsAre("first\n", "second\n"));
  EXPECT_EQ(fs::status(dir).permissions(), fs::perms::owner_all);
}

TEST(Output, LogFoldersAreOpenToOthersOnlyIfAsked) {
  TempFolder folder;
  EXPECT_EQ(run_lockstep({"run", "--log-dir", folder.at("logs"), "--log-dir-mode", "755", "true"})
                .status.code,
            0);
  EXPECT_EQ(fs::status(folder.at("logs")).permissions(), static_cast<fs::perms>(0755));
  for (const char* mode : {"rwx", "600", "0", "99999"}) {
    const base::Output output =
        run_lockstep({"run", "--log-dir", folder.path(), "--log-dir-mode", mode, "true"});
    EXPECT_EQ(output.status.code, 2) << mode << output.err;
  }
}

// `lockstep train --json` and the like: what rank 0 writes is data for the next program.
TEST(Output, JsonOfRankZeroPassesAsItIs) {
  const base::Output output = run_lockstep(
      {"run", "--nproc-per-node", "2", "sh", "-c",
       "if [ $RANK = 0 ]; then echo '{\"loss\": 1.5}'; echo '{not json}'; echo \"{'a': 1}\"; "
       "printf '{\"end\": true}'; else echo '{\"mine\": 2}'; fi; echo '{\"e\": 1}' >&2"});
  EXPECT_EQ(output.status.code, 0) << output.err;
  EXPECT_THAT(lines(output.out),
              UnorderedElementsAre("{\"loss\": 1.5}", "r0: {not json}", "r0: {'a': 1}",
                                   "{\"end\": true}", "r1: {\"mine\": 2}"));
  EXPECT_THAT(lines(output.err), UnorderedElementsAre("r0: {\"e\": 1}", "r1: {\"e\": 1}"));
}

TEST(Output, LogDirThatCannotBeMadeIsOneSentence) {
  TempFolder folder;
  const std::string file = folder.file("file", "");
  const base::Output output = run_lockstep({"run", "--log-dir", file, "echo", "never"});
  EXPECT_EQ(output.status.code, 2);
  EXPECT_EQ(output.out, "");
  EXPECT_EQ(lines(output.err).size(), 1u) << output.err;
  EXPECT_THAT(output.err, HasSubstr("Not a directory"));
  EXPECT_THAT(output.err, HasSubstr("--log-dir"));
  const base::Output again =
      run_lockstep({"run", "--max-restarts", "2", "--log-dir", file, "echo", "never"});
  EXPECT_EQ(again.status.code, 2) << "it ends, too, if it may try again";
  EXPECT_EQ(count(again.err, "Not a directory"), 3) << again.err;
}

TEST(Output, AFullDiskCostsTheLogNotTheJob) {
  TempFolder folder;
  const base::Output output = shell("ulimit -f 1; exec " + lockstep_program() + " run --log-dir " +
                                    folder.path() + " sh -c 'seq 1 2000; seq 1 2000'");
  EXPECT_EQ(output.status.code, 0) << output.err;
  EXPECT_EQ(lines(output.out).size(), 4000u);
  EXPECT_EQ(count(output.err, "going on without this log file"), 1) << output.err;
}

TEST(Output, AFullConsoleDoesNotEndTheJob) {
  const base::Output output =
      shell(lockstep_program() + " run sh -c 'seq 1 2000; seq 1 2000; exit 3' > /dev/full");
  EXPECT_EQ(output.status.code, 3);
  EXPECT_EQ(count(output.err, "No space left on device"), 1) << output.err;
}

TEST(Output, AReaderThatLeavesEndsTheWriterBySigpipe) {
  const base::Output output =
      shell("{ " + lockstep_program() + " run yes; echo code $? >&2; } | head -n 1");
  EXPECT_EQ(output.out, "r0: y\n");
  EXPECT_THAT(output.err, HasSubstr("SIGPIPE"));
  EXPECT_THAT(output.err, HasSubstr("code 141"));
}

TEST(Output, ColourOnlyOnATerminal) {
  const std::string command = lockstep_program() + " run --nproc-per-node 1 echo hi";
  const auto on_terminal = [&](const std::string& env) {
    return shell(env + " script -qec '" + command + "' /dev/null");
  };
  if (shell("command -v script").out.empty()) {
    GTEST_SKIP() << "no script(1) to make a terminal";
  }
  EXPECT_THAT(on_terminal("NO_COLOR=").out, HasSubstr("\x1b[32mr0:\x1b[0m hi"));
  EXPECT_THAT(on_terminal("NO_COLOR=1").out, ::testing::StartsWith("r0: hi"));
  EXPECT_EQ(shell(command).out, "r0: hi\n");
}

TEST(Output, LastLinesKeepOnlyTheNewest) {
  const base::Output output = run_lockstep({"run", "sh", "-c", "seq 1 100; exit 9"});
  EXPECT_EQ(output.status.code, 9);
  EXPECT_THAT(output.err, HasSubstr("    81\n"));
  EXPECT_THAT(output.err, HasSubstr("    100\n"));
  EXPECT_EQ(count(output.err, "    80\n"), 0);
}

}  // namespace
}  // namespace lockstep::test
