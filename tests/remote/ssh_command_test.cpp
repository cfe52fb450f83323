// What is made of a host and a command, before any ssh runs.

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "remote/ssh.h"
#include "support/job.h"

namespace lockstep {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

base::Env env_of(std::map<std::string, std::string> values) {
  return base::Env([values = std::move(values)](const std::string& name) {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  });
}

std::vector<std::string> strange_words(unsigned int seed) {
  const std::vector<std::string> pieces{"a", " ",    "'", "\"", "$HOME", "`x`",  "\\", "\n",   "\t",
                                        "é", "랭크", "*", "~",  "!",     "#",    "&",  ";",    "|",
                                        "<", "(",    "=", "-",  "\x01",  "\xff", "[",  "{1,2}"};
  std::mt19937 random(seed);
  std::vector<std::string> words(1 + random() % 6);
  for (std::string& word : words) {
    for (auto left = random() % 5; left > 0; --left) {
      word += pieces[random() % pieces.size()];
    }
  }
  return words;
}

TEST(ShellQuoting, ArgumentsArriveUnchangedThroughARealShell) {
  for (unsigned int seed = 0; seed < 60; ++seed) {
    const auto words = strange_words(seed);
    std::vector<std::string> command{"printf", "%s\\0"};
    command.insert(command.end(), words.begin(), words.end());
    std::string expected;
    for (const std::string& word : words) {
      expected += word + '\0';
    }
    const base::Output output =
        base::run_process({.argv = {"sh", "-c", remote::shell_command(command)}},
                          base::Deadline::after(test::kPatience));
    EXPECT_EQ(output.out, expected) << remote::shell_command(command);
    EXPECT_EQ(remote::split_words(remote::shell_command(words), "test"), words);
  }
}

TEST(ShellQuoting, PlainWordsStayReadable) {
  EXPECT_EQ(remote::shell_command({"/opt/x/lockstep", "run", "--join", "a b", ""}),
            "/opt/x/lockstep run --join 'a b' ''");
}

TEST(ShellQuoting, SplitsAsAShellDoes) {
  EXPECT_THAT(remote::split_words(
                  "  ssh -p\t22 -i 'my key' \"a \\\" \\n $x\" b\\ c d'e'\"f\" '' \n", "test"),
              ElementsAre("ssh", "-p", "22", "-i", "my key", "a \" \\n $x", "b c", "def", ""));
  EXPECT_THAT(remote::split_words("", "test"), ElementsAre());
  EXPECT_THROW(remote::split_words("ssh 'x", "test"), UsageError);
}

TEST(SshCommand, NeverAsksAndLeavesTrustToTheUser) {
  const auto argv = remote::ssh_command({.name = "node7", .user = "me"}, {}, {"echo", "a b"});
  EXPECT_EQ(argv.front(), "ssh");
  EXPECT_THAT(argv, Contains("BatchMode=yes"));
  EXPECT_THAT(argv, Contains("ConnectTimeout=10"));
  EXPECT_THAT(remote::shell_command(argv), HasSubstr("-l me node7 'echo '\\''a b'\\'''"));
  EXPECT_THAT(argv, Not(Contains(HasSubstr("StrictHostKeyChecking"))));
}

TEST(SshCommand, UsersProgramAndOptionsComeFirst) {
  const auto options =
      remote::SshOptions::from_env(env_of({{"LOCKSTEP_SSH", "/opt/ssh -F 'my config'"}}));
  const auto argv = remote::ssh_command({.name = "a"}, options, {"true"});
  EXPECT_THAT(std::vector<std::string>(argv.begin(), argv.begin() + 3),
              ElementsAre("/opt/ssh", "-F", "my config"));
  EXPECT_THAT(remote::SshOptions::from_env(env_of({})).program, ElementsAre("ssh"));
  EXPECT_THROW(remote::SshOptions::from_env(env_of({{"LOCKSTEP_SSH", "  "}})), UsageError);
  EXPECT_THROW(remote::SshOptions::from_env(env_of({{"LOCKSTEP_SSH", "ssh \"x"}})), UsageError);
}

TEST(RemoteLockstep, IsTheOneAtTheSamePathElseTheOneInPath) {
  const test::TempFolder here;
  const test::TempFolder in_path;
  const std::string same = here.file("lockstep", "#!/bin/sh\necho same \"$@\"\n", 0755);
  in_path.file("lockstep", "#!/bin/sh\necho in PATH \"$@\"\n", 0755);
  const auto run = [&](const std::string& program, const std::string& path) {
    const std::string command =
        remote::shell_command(remote::remote_lockstep(program, {"run", "--join", "a b"}));
    return base::run_process({.argv = {"/bin/sh", "-c", command}, .env = {{"PATH", path}}},
                             base::Deadline::after(test::kPatience));
  };
  const std::string path = in_path.path() + ":/usr/bin:/bin";
  EXPECT_EQ(run(same, path).out, "same run --join a b\n");
  EXPECT_EQ(run(here.path() + "/none", path).out, "in PATH run --join a b\n");
  EXPECT_EQ(run(here.path() + "/none", "/usr/bin:/bin").status.code, 127);
}

TEST(TravellingEnvironment, IsWhatTheJobNeedsAndWhatIsNamed) {
  const std::vector<std::string> environment{
      "HOME=/x",     "PATH=/bin",       "LD_LIBRARY_PATH=/l", "LOCKSTEP_LOG_LEVEL=debug",
      "NCCL_DEBUG=", "OMP_PROC_BIND=1", "AWS_SECRET=s",       "PATHS=no",
      "FOO=a=b",     "nonsense"};
  EXPECT_THAT(remote::travelling_environment(environment, {}),
              UnorderedElementsAre(Pair("PATH", "/bin"), Pair("LD_LIBRARY_PATH", "/l"),
                                   Pair("LOCKSTEP_LOG_LEVEL", "debug"), Pair("NCCL_DEBUG", ""),
                                   Pair("OMP_PROC_BIND", "1")));
  const auto named = remote::travelling_environment(environment, {"FOO", "BAR=x=y", "PATH=/other"});
  EXPECT_EQ(named.at("FOO"), "a=b");
  EXPECT_EQ(named.at("BAR"), "x=y");
  EXPECT_EQ(named.at("PATH"), "/other");
}

TEST(TravellingEnvironment, MistakesAreNamed) {
  const auto refusal = [](const std::vector<std::string>& environment,
                          const std::vector<std::string>& named) {
    try {
      remote::travelling_environment(environment, named);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(refusal({}, {"FOO"}), HasSubstr("--env FOO: it is not set here"));
  EXPECT_THAT(refusal({}, {"=x"}), HasSubstr("--env =x does not name a variable"));
  EXPECT_THAT(refusal({}, {"a b=x"}), HasSubstr("does not name a variable"));
  EXPECT_THAT(refusal({"NCCL_X=\xff"}, {}), HasSubstr("NCCL_X is not UTF-8"));
}

}  // namespace
}  // namespace lockstep
