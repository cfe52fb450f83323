// Exit codes, the report, and what a worker finds when it starts.

#include <fcntl.h>
#include <filesystem>
#include <map>
#include <netinet/in.h>
#include <set>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/job.h"

namespace lockstep::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
namespace fs = std::filesystem;

TEST(Run, AllRanksWellIsSilentZero) {
  const base::Output output = run_lockstep({"run", "--nproc-per-node", "3", "true"});
  EXPECT_EQ(output.status.code, 0);
  EXPECT_EQ(output.out + output.err, "");
}

TEST(Run, ExitCodeIsTheFailedRanksAndNamesIt) {
  const base::Output output =
      run_lockstep({"run", "--nproc-per-node", "4", "sh", "-c", "exit $((RANK==2?7:0))"});
  EXPECT_EQ(output.status.code, 7);
  EXPECT_THAT(output.err, StartsWith("lockstep run: rank 2 (node 0, local rank 2, pid "));
  EXPECT_THAT(output.err, HasSubstr("failed: exit code 7\n"));
  EXPECT_THAT(output.err, HasSubstr("  3 other ranks: "));
}

TEST(Run, SignalIs128MoreAndNamed) {
  const base::Output output = run_lockstep(
      {"run", "--nproc-per-node", "2", "sh", "-c", "[ $RANK = 1 ] && kill -SEGV $$; sleep 1000"});
  EXPECT_EQ(output.status.code, 139);
  EXPECT_THAT(output.err, HasSubstr("failed: killed by signal 11 (SIGSEGV)"));
  EXPECT_THAT(output.err, HasSubstr("1 other rank: 1 stopped by lockstep"));
}

TEST(Run, FirstFailureComesFirstWithItsLastLines) {
  TempFolder folder;
  const std::string pid_file = folder.path() + "/pid";
  // Rank 0 fails once rank 3 is dead (a zombie or gone); both may be noticed at the same time.
  const base::Output output = run_lockstep(
      {"run", "--nproc-per-node", "4", "sh", "-c",
       "F=" + pid_file +
           "; case $RANK in "
           "0) until [ -s $F ]; do :; done; read pid < $F; "
           "   while grep -qs 'State:.[RSD]' /proc/$pid/status; do :; done; echo lost peer; exit "
           "5;; "
           "3) echo one; echo the cause >&2; echo $$ > $F.part; mv $F.part $F; exit 3;; "
           "*) sleep 1000;; esac"});
  EXPECT_EQ(output.status.code, 3) << output.err;
  const size_t top = output.err.find("lockstep run: rank 3 (node 0, local rank 3, pid ");
  ASSERT_NE(top, std::string::npos) << output.err;
  const std::string report = output.err.substr(top);
  EXPECT_THAT(report, HasSubstr("failed: exit code 3\n  its last output:\n"));
  EXPECT_THAT(report, HasSubstr("\n    one\n"));
  EXPECT_THAT(report, HasSubstr("\n    the cause\n"));
  EXPECT_THAT(lines(report).back(), HasSubstr("3 other ranks: "));
}

TEST(Run, ProgramNotFoundIsSaidOnce) {
  const base::Output output = run_lockstep({"run", "--nproc-per-node", "4", "./no-such-program"});
  EXPECT_EQ(output.status.code, 127);
  EXPECT_EQ(output.err,
            "lockstep run: cannot start ./no-such-program: No such file or directory\n");
}

TEST(Run, ProgramNotExecutable) {
  TempFolder folder;
  const std::string file = folder.file("data.txt", "hello");
  const base::Output output = run_lockstep({"run", "--nproc-per-node", "2", file});
  EXPECT_EQ(output.status.code, 126);
  EXPECT_EQ(count(output.err, "cannot start " + file + ": Permission denied"), 1);
}

TEST(Run, MissingInterpreterIsExplained) {
  TempFolder folder;
  const std::string file = folder.file("script", "#!/no/such/interpreter\n", 0755);
  const base::Output output = run_lockstep({"run", file});
  EXPECT_EQ(output.status.code, 127);
  EXPECT_THAT(output.err, HasSubstr("the interpreter that it names is missing"));
}

std::map<int, std::map<std::string, std::string>> environments(const std::string& out) {
  std::map<int, std::map<std::string, std::string>> result;
  for (const std::string& line : lines(out)) {
    const size_t r = line.find('r');
    const size_t colon = line.find(": ");
    const size_t equals = line.find('=');
    if (equals != std::string::npos && colon < equals) {
      const int rank = std::stoi(line.substr(r + 1, colon - r - 1));
      result[rank][line.substr(colon + 2, equals - colon - 2)] = line.substr(equals + 1);
    }
  }
  return result;
}

TEST(Run, EveryRankHasItsPlaceInTheEnvironment) {
  const base::Output output =
      run_lockstep({"run", "--nproc-per-node", "2", "--local-nodes", "2", "env"},
                   {{"RANK", "77"},
                    {"LOCKSTEP_RANK", "77"},
                    {"WORLD_SIZE", "99"},
                    {"MASTER_PORT", "1"},
                    {"TORCHELASTIC_ERROR_FILE", "/x"},
                    {"OMP_NUM_THREADS", ""},
                    {"KEPT", "a=b"}});
  ASSERT_EQ(output.status.code, 0) << output.err;
  auto ranks = environments(output.out);
  ASSERT_EQ(ranks.size(), 4u);
  std::set<std::string> shared;
  for (auto& [rank, env] : ranks) {
    const int node = rank / 2;
    const std::map<std::string, std::string> expected = {
        {"RANK", std::to_string(rank)},
        {"LOCAL_RANK", std::to_string(rank % 2)},
        {"WORLD_SIZE", "4"},
        {"LOCAL_WORLD_SIZE", "2"},
        {"GROUP_RANK", std::to_string(node)},
        {"GROUP_WORLD_SIZE", "2"},
        {"ROLE_NAME", "default"},
        {"ROLE_RANK", std::to_string(rank)},
        {"ROLE_WORLD_SIZE", "4"},
        {"MASTER_ADDR", "127.0.0.1"},
        {"TORCHELASTIC_RESTART_COUNT", "0"},
        {"TORCHELASTIC_MAX_RESTARTS", "0"},
        {"TORCHELASTIC_USE_AGENT_STORE", "False"},
        {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
        {"THP_MEM_ALLOC_ENABLE", "1"},
        {"LOCKSTEP_RANK", std::to_string(rank)},
        {"LOCKSTEP_WORLD_SIZE", "4"},
        {"LOCKSTEP_LOCAL_RANK", std::to_string(rank % 2)},
        {"LOCKSTEP_LOCAL_WORLD_SIZE", "2"},
        {"LOCKSTEP_NODE_RANK", std::to_string(node)},
        {"LOCKSTEP_NUM_NODES", "2"},
        {"LOCKSTEP_NODE_ID", fmt::format("{}-n{}", env["LOCKSTEP_JOB_ID"], node)},
        {"LOCKSTEP_GENERATION", "0"},
        {"TORCHELASTIC_RUN_ID", env["LOCKSTEP_JOB_ID"]},
        {"KEPT", "a=b"}};
    for (const auto& [name, value] : expected) {
      EXPECT_EQ(env[name], value) << name << " of rank " << rank;
    }
    EXPECT_THAT(env["TORCHELASTIC_ERROR_FILE"], HasSubstr("/lockstep_error_"));
    EXPECT_GE(env["LOCKSTEP_JOB_SECRET"].size(), 32u);
    EXPECT_THAT(env["LOCKSTEP_STORE"], StartsWith("127.0.0.1:"));
    EXPECT_GT(std::stoi(env["MASTER_PORT"]), 1023);
    shared.insert(env["LOCKSTEP_JOB_ID"] + env["LOCKSTEP_JOB_SECRET"] + env["LOCKSTEP_STORE"] +
                  env["MASTER_PORT"]);
  }
  EXPECT_EQ(shared.size(), 1u) << "what describes the job is the same on every rank";
}

TEST(Run, InputIsEmptyAndNoDescriptorLeaks) {
  const base::Output output =
      run_lockstep({"run", "sh", "-c", "cat; readlink /proc/$$/fd/0; echo /proc/$$/fd/*"});
  const auto out = lines(output.out);
  ASSERT_EQ(out.size(), 2u) << output.out << output.err;
  EXPECT_EQ(out[0], "r0: /dev/null");
  // The shell itself holds one more while it lists.
  EXPECT_LE(count(out[1], "/fd/"), 4) << out[1];
}

TEST(Run, ARankKnowsItsPidOnTheHost) {
  for (const char* mode : {"auto", "guardian"}) {
    const base::Output output = run_lockstep({"run", "--isolation", mode, "--no-prefix", "sh", "-c",
                                              "echo ${LOCKSTEP_HOST_PID:-$$:$$}; exit 3"});
    const std::string pair = lines(output.out).at(0);
    const size_t colon = pair.find(':');
    ASSERT_NE(colon, std::string::npos) << pair;
    EXPECT_THAT(output.err, HasSubstr("pid " + pair.substr(colon + 1) + ") failed"));
  }
}

TEST(Run, ProcAgreesWithGetpid) {
  const base::Output output =
      run_lockstep({"run", "sh", "-c", "read pid rest < /proc/self/stat; exit $((pid==$$?0:1))"});
  EXPECT_EQ(output.status.code, 0) << output.err;
}

TEST(Run, MasterPortIsKeptForTheJobYetRankZeroCanListen) {
  Job job({"sh", "-c", "echo port=$MASTER_PORT.; sleep 1000"});
  ASSERT_TRUE(job.wait_for_output(".", 1));
  const std::string out = job.out();
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(out.substr(out.find("port=") + 5))));
  const auto* raw = reinterpret_cast<const sockaddr*>(&address);

  const base::UniqueFd stranger(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_NE(::bind(stranger.get(), raw, sizeof address), 0) << "anyone can take the port";

  const base::UniqueFd store(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  ::setsockopt(store.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  EXPECT_EQ(::bind(store.get(), raw, sizeof address), 0);
  EXPECT_EQ(::listen(store.get(), 8), 0);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const base::UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(client.get(), raw, sizeof address), 0);
}

TEST(Run, EightRanksStart) {
  const base::Output output = run_lockstep({"run", "--nproc-per-node", "8", "sh", "-c", "echo up"});
  EXPECT_EQ(output.status.code, 0);
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(count(output.out, fmt::format("r{}: up\n", rank)), 1);
  }
}

TEST(Run, ManyRanksNeedNoHigherFileLimit) {
  const base::Output output =
      base::run_process({.argv = {"sh", "-c",
                                  "ulimit -S -n 64; exec " + lockstep_program() +
                                      " run --nproc-per-node 40 sh -c 'ulimit -S -n'"}},
                        base::Deadline::after(kPatience));
  EXPECT_EQ(output.status.code, 0) << output.err;
  EXPECT_EQ(count(output.out, ": 64\n"), 40) << "workers keep the user's limit";
}

// Runs a command line as a user without privileges; in it, $L is lockstep.
base::Output run_unprivileged(const std::string& script) {
  TempFolder folder;
  fs::permissions(folder.path(), fs::perms(0755));
  fs::copy_file(lockstep_program(), folder.path() + "/lockstep");  // the build may be private
  std::vector<std::string> argv{"sh", "-c", "L=" + folder.path() + "/lockstep; " + script};
  if (::geteuid() == 0) {
    argv.insert(argv.begin(), {"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"});
  }
  return base::run_process({.argv = argv}, base::Deadline::after(kPatience));
}

TEST(Run, WithoutPrivilegesAGuardianDoes) {
  EXPECT_EQ(count(run_unprivileged("$L run --nproc-per-node 2 echo hi").out, ": hi\n"), 2);
  const base::Output output = run_unprivileged("$L run --isolation pidns echo hi");
  EXPECT_EQ(output.status.code, 2);
  EXPECT_THAT(output.err,
              HasSubstr("--isolation pidns: unshare(CLONE_NEWPID): Operation not permitted"));
  EXPECT_THAT(output.err, HasSubstr("use --isolation guardian"));
}

TEST(Run, NoFurtherProcessIsOneSentence) {
  const base::Output output = run_unprivileged(
      "export ASAN_OPTIONS=detect_leaks=0;"  // its leak checker needs a thread
      "exec prlimit --nproc=1 $L run --isolation guardian true");
  EXPECT_EQ(output.status.code, 1);
  EXPECT_THAT(output.err, HasSubstr("cannot make a process"));
  EXPECT_EQ(lines(output.err).size(), 1u) << output.err;
}

// What the leader's own process had as children before belongs to someone else.
TEST(Run, ChildrenFromBeforeAreSpared) {
  const base::Output output = base::run_process(
      {.argv = {"sh", "-c",
                "sh -c 'sleep 0.3; echo still here' & exec " + lockstep_program() + " run true"}},
      base::Deadline::after(kPatience));
  EXPECT_EQ(output.status.code, 0) << output.err;
  EXPECT_EQ(output.out, "still here\n");
}

TEST(Run, WorksWithoutStandardDescriptors) {
  const base::Output output = base::run_process(
      {.argv = {"sh", "-c", lockstep_program() + " run sh -c 'exit 6' <&- >&- 2>&-"}},
      base::Deadline::after(kPatience));
  EXPECT_EQ(output.status.code, 6);
}

// A SIGTERM that came before the exec would be lost, and the grace would pass.
TEST(Run, AStopReachesRanksThatHaveHardlyBegun) {
  for (int i = 0; i < 20; ++i) {
    const base::Output output =
        run_lockstep({"run", "--nproc-per-node=8", "--stop-grace=1000", "sh", "-c",
                      "[ $RANK = 0 ] && exit 3; exec sleep 1000"});
    ASSERT_EQ(output.status.code, 3) << output.err;
  }
}

}  // namespace
}  // namespace lockstep::test
