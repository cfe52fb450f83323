// Mistakes on the command line are one sentence and exit code 2; help is at each level.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/job.h"
#include "support/temp_folder.h"

namespace lockstep::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Mistake {
  std::vector<std::string> arguments;
  std::string says;
};

TEST(CommandLine, MistakesAreOneSentence) {
  const std::vector<Mistake> mistakes = {
      {{"rnu"}, "there is no command rnu; did you mean run?"},
      {{"xyzzy"}, "there is no command xyzzy (see"},
      {{"run"}, "no program given"},
      {{"run", "--"}, "no program given"},
      {{"run", "--nproc-per-node", "4"}, "no program given"},
      {{"run", "--nproc-per-node", "0", "true"},
       "--nproc-per-node 0 is not a whole number in [1, 1024]"},
      {{"run", "--nproc-per-node=-1", "true"}, "--nproc-per-node -1 is not"},
      {{"run", "--nproc-per-node", "2x", "true"}, "--nproc-per-node 2x is not"},
      {{"run", "--nproc-per-node", "99999999999999999999", "true"}, "is not a whole number"},
      {{"run", "--nproc-per-node"}, "--nproc-per-node needs a value"},
      {{"run", "--local-nodes", "0", "true"}, "--local-nodes 0 is not"},
      {{"run", "--stop-grace", "-3", "true"}, "--stop-grace -3 is not a number of seconds"},
      {{"run", "--stop-grace", "soon", "true"}, "--stop-grace soon is not"},
      {{"run", "--isolation", "none", "true"}, "--isolation none is unknown"},
      {{"run", "--nproc-per-nod", "4", "true"},
       "there is no flag --nproc-per-nod; did you mean --nproc-per-node?"},
      {{"run", "--no-prefix=maybe", "true"}, "no-prefix"},
      {{"run", "--nproc-per-node", "2", "--local-ranks-filter", "0,7", "true"},
       "names the local rank 7, but with 2 ranks on a node the last is 1; leave it out"},
      {{"run", "--dry-run", "--local-ranks-filter", "1", "true"}, "names the local rank 1"},
      {{"run", "--nproc-per-node", "2", "--redirects", "0:3,5:3", "true"},
       "--redirects names the local rank 5, but with 2 ranks on a node the last is 1"},
      {{"run", "--tee", "1:1", "true"}, "--tee names the local rank 1, but with 1 rank on a node"},
      {{"run", "--hosts", "localhost:2", "--local-ranks-filter", "2", "true"},
       "names the local rank 2"},
      {{"run", "--secret-file", "/nowhere", "true"}, "cannot read the secret /nowhere"},
      {{"run", "--hosts", "localhost", "--secret-file", "/nowhere", "true"},
       "cannot read the secret /nowhere"},
      {{"doctor", "me"}, "doctor takes no argument me"},
      {{"doctor", "--jsn"}, "there is no flag --jsn; did you mean --json?"},
  };
  for (const Mistake& mistake : mistakes) {
    const base::Output output = run_lockstep(mistake.arguments);
    EXPECT_EQ(output.status.code, 2) << output.err;
    EXPECT_THAT(output.err, HasSubstr(mistake.says));
    EXPECT_THAT(output.err, StartsWith("lockstep"));
    EXPECT_EQ(lines(output.err).size(), 1u) << output.err;
    EXPECT_EQ(output.out, "");
  }
}

TEST(CommandLine, BothSpellingsAndBothForms) {
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{{"--nproc-per-node", "2"},
                                             {"--nproc_per_node", "2"},
                                             {"--nproc-per-node=2"},
                                             {"--nproc_per_node=2"}}) {
    std::vector<std::string> arguments{"run"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    arguments.insert(arguments.end(), {"--no_prefix", "echo", "x"});
    EXPECT_EQ(run_lockstep(arguments).out, "x\nx\n");
  }
}

TEST(CommandLine, ASecretFileIsTheJobsSecretWhereverTheRanksAre) {
  const TempFolder folder;
  const std::string secret = "0f1e2d3c4b5a69788796a5b4c3d2e1f0";
  const std::string file = folder.file("secret", secret + "\n", 0600);
  for (const std::vector<std::string>& place :
       std::vector<std::vector<std::string>>{{}, {"--hosts", "localhost"}}) {
    std::vector<std::string> arguments{"run", "--secret-file", file, "--no-prefix"};
    arguments.insert(arguments.end(), place.begin(), place.end());
    arguments.insert(arguments.end(), {"sh", "-c", "echo $LOCKSTEP_JOB_SECRET"});
    const base::Output output = run_lockstep(arguments);
    EXPECT_EQ(output.out, secret + "\n") << output.err;
  }
}

// The largest node counts: the others show what they have of it.
TEST(CommandLine, AFilterMayNameRanksThatOnlyTheLargestHostHas) {
  const base::Output output =
      run_lockstep({"run", "--hosts", "localhost:1,127.0.0.1:2", "--local-ranks-filter", "1",
                    "--no-prefix", "sh", "-c", "echo $RANK"});
  EXPECT_EQ(output.status.code, 0) << output.err;
  EXPECT_EQ(output.out, "2\n");
}

TEST(CommandLine, TheProgramsFlagsAreItsOwn) {
  const std::vector<std::string> program{"echo", "--nproc-per-node", "4", "--help", "--", "-x",
                                         "a b"};
  for (const bool separator : {false, true}) {
    std::vector<std::string> arguments{"run"};
    if (separator) {
      arguments.emplace_back("--");
    }
    arguments.insert(arguments.end(), program.begin(), program.end());
    EXPECT_EQ(run_lockstep(arguments).out, "r0: --nproc-per-node 4 --help -- -x a b\n");
  }
}

TEST(CommandLine, HelpAtEachLevel) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {}, {"--help"}, {"-h"}, {"run", "--help"}, {"run", "-h"}, {"doctor", "--help"}}) {
    const base::Output output = run_lockstep(arguments);
    EXPECT_EQ(output.status.code, 0);
    EXPECT_THAT(output.out, HasSubstr("Examples:"));
    EXPECT_EQ(output.err, "");
  }
}

TEST(CommandLine, VersionNamesWhatItLinks) {
  const base::Output output = run_lockstep({"--version"});
  EXPECT_EQ(output.status.code, 0);
  EXPECT_THAT(output.out, StartsWith("lockstep 0."));
  for (const char* name :
       {"fmt", "CLI11", "nlohmann-json", "toml++", "spdlog", "OpenSSL", "g++", "glibc", "doctor"}) {
    EXPECT_THAT(output.out, HasSubstr(name));
  }
}

TEST(CommandLine, DoctorSpeaksJson) {
  const base::Output output = run_lockstep({"doctor", "--json"});
  const auto json = nlohmann::json::parse(output.out, nullptr, false);
  ASSERT_FALSE(json.is_discarded()) << output.out;
  EXPECT_EQ(json.at("ok").get<bool>(), output.status.code == 0);
  EXPECT_GE(json.at("checks").size(), 12u);
  for (const auto& check : json.at("checks")) {
    EXPECT_TRUE(check.at("name").is_string() && check.at("found").is_string() &&
                check.at("fix").is_string());
    EXPECT_THAT((std::vector<std::string>{"ok", "note", "PROBLEM"}),
                ::testing::Contains(check.at("status").get<std::string>()));
  }
  EXPECT_THAT(run_lockstep({"doctor"}).out, HasSubstr("shared memory"));
}

}  // namespace
}  // namespace lockstep::test
