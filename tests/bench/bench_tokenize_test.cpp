// `lockstep bench tokenize` as a user runs it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/process/process.h"
#include "support/paths.h"
#include "support/temp_folder.h"

namespace lockstep::test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

base::Output bench(std::vector<std::string> arguments,
                   std::map<std::string, std::string> env = {}) {
  std::vector<std::string> argv = {testing_support::in_build("lockstep"), "bench", "tokenize"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return base::run_process({.argv = std::move(argv), .env = std::move(env)},
                           base::Deadline::after(std::chrono::minutes(1)));
}

TEST(BenchTokenize, JsonHoldsEveryFigureAndNullForAPeerThatIsNotThere) {
  const TempFolder path;  // without python3, whatever this machine has
  for (const char* kind : {"wordpiece", "byte-bpe"}) {
    for (const char* script : {"english", "chinese", "mixed"}) {
      const base::Output output = bench(
          {"--tokenizer", kind, "--script", script, "--megabytes", "1", "--repeats", "2", "--json"},
          {{"PATH", path.path()}});
      ASSERT_TRUE(output.status.ok()) << output.err;
      EXPECT_THAT(output.err, HasSubstr("python3 cannot be started, its figures are left out"));
      const json answer = json::parse(output.out);
      EXPECT_EQ(answer.at("tokenizer"), kind);
      EXPECT_EQ(answer.at("text"), script);
      EXPECT_EQ(answer.at("vocab"), "generated");
      EXPECT_GE(answer.at("text_bytes"), 1'000'000);
      EXPECT_GT(answer.at("tokens"), 100'000);
      EXPECT_GT(answer.at("mb_per_s"), 0);
      EXPECT_EQ(answer.at("raw_cpu_s").at("lockstep").size(), 2u);
      for (const char* name : {"peer", "peer_mb_per_s", "speedup"}) {
        EXPECT_TRUE(answer.at(name).is_null()) << name;
      }
    }
  }
}

TEST(BenchTokenize, AVocabularyAndATextOfTheUsersAreMeasured) {
  const TempFolder folder;
  const base::Output output =
      bench({"--vocab", testing_support::in_tree("tests/tokenizers/golden/bpe"), "--text",
             folder.file("text", "Hello\n"), "--peer=none"});
  ASSERT_TRUE(output.status.ok()) << output.err;
  EXPECT_EQ(output.err, "");
  EXPECT_THAT(output.out, AllOf(HasSubstr("byte-bpe"), HasSubstr("lockstep"), HasSubstr("MB/s")));
}

// What stands in for Python: it has tokenizers, and answers as `lines` say.
std::string standin(const TempFolder& folder, const std::string& lines) {
  return folder.file("python", "#!/bin/sh\n[ \"$1\" = -c ] && exit 0\n" + lines, 0755);
}

TEST(BenchTokenize, IdsAreComparedWithThePeers) {
  const TempFolder folder;
  const std::string text = folder.file("text", "a");
  const std::string vocabulary = folder.file("vocab.txt", "[UNK]\nb\na\n");
  const auto with = [&](const std::string& lines) {
    return bench({"--vocab", vocabulary, "--text", text, "--repeats=1", "--json", "--peer-python",
                  standin(folder, lines)});
  };
  const base::Output same =
      with(R"(echo ready; read line; printf '0.25 2\n\002\000\000\000\377\377\377\377')");
  ASSERT_TRUE(same.status.ok()) << same.err;
  EXPECT_EQ(json::parse(same.out).at("peer"), "tokenizers");
  EXPECT_DOUBLE_EQ(json::parse(same.out).at("peer_mb_per_s"), 4e-6);
  EXPECT_GT(json::parse(same.out).at("speedup"), 0);

  const base::Output other =
      with(R"(echo ready; read line; printf '0.25 2\n\001\000\000\000\377\377\377\377')");
  EXPECT_EQ(other.status.code, 1);
  EXPECT_THAT(other.err, HasSubstr("id 0 (of 2) is 2 here and 1 under the peer"));
  const base::Output fewer = with(R"(echo ready; read line; printf '0.25 1\n\002\000\000\000')");
  EXPECT_EQ(fewer.status.code, 1);
  EXPECT_THAT(fewer.err, HasSubstr("id 1 (of 2) is -1 here and the end under the peer"));
  const base::Output failed = with("echo it broke >&2; exit 3");
  EXPECT_EQ(failed.status.code, 1);
  EXPECT_THAT(failed.err, AllOf(HasSubstr("the peer ended with exit code 3"), HasSubstr("broke")));
}

TEST(BenchTokenize, MistakesOnTheLineExitWith2) {
  const TempFolder folder;
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"--tokenizer", "words"}, "--tokenizer: words not in {wordpiece,byte-bpe}"},
      {{"--script", "latin"}, "{english,chinese,mixed}"},
      {{"--peer", "spacy"}, "{tokenizers,none}"},
      {{"--peer-python", "/nowhere/python"}, "--peer-python /nowhere/python cannot be started"},
      {{"--peer-python", "false"}, "--peer-python false cannot import tokenizers"},
      {{"--megabytes", "0"}, "--megabytes"},
      {{"--repeats", "no"}, "--repeats"},
      {{"--text", folder.file("empty", "")}, "is empty; there is nothing to measure"},
      {{"what"}, "there is no place for \"what\""},
  };
  for (const auto& [arguments, expected] : cases) {
    const base::Output output = bench(arguments);
    EXPECT_EQ(output.status.code, 2) << expected;
    EXPECT_THAT(output.err, HasSubstr(expected));
  }
  EXPECT_TRUE(bench({"--help"}).status.ok());
}

}  // namespace
}  // namespace lockstep::test
