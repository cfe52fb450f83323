#include "base/env.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

base::Env env_of(std::map<std::string, std::string> variables) {
  return base::Env(
      [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
      });
}

TEST(Env, AnEmptyValueIsUnset) {
  EXPECT_FALSE(env_of({{"A", ""}}).has("A"));
  EXPECT_EQ(env_of({{"A", "x"}}).text("A"), "x");
}

TEST(Env, ReadsWholeNumbersInRange) {
  const base::Env env = env_of({{"RANK", "3"}});
  EXPECT_EQ(env.integer("RANK", 0, 7), 3);
  EXPECT_EQ(env.integer("MISSING", 0, 7), std::nullopt);
}

TEST(Env, ABadNumberNamesVariableValueAndRange) {
  for (const char* bad : {"x", "3x", " 3", "8", "-1", "1e2", "99999999999999999999"}) {
    try {
      env_of({{"RANK", bad}}).integer("RANK", 0, 7);
      FAIL() << bad << " was accepted";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("RANK="), HasSubstr(bad), HasSubstr("0 to 7")));
    }
  }
}

TEST(Env, FlagsTakeTheUsualWordsAndNoOthers) {
  for (const char* yes : {"1", "true", "True", "YES", "on"}) {
    EXPECT_EQ(env_of({{"F", yes}}).flag("F"), true) << yes;
  }
  for (const char* no : {"0", "false", "No", "OFF"}) {
    EXPECT_EQ(env_of({{"F", no}}).flag("F"), false) << no;
  }
  EXPECT_EQ(env_of({}).flag("F"), std::nullopt);
  EXPECT_THROW(env_of({{"F", "maybe"}}).flag("F"), UsageError);
}

TEST(Env, TheDefaultReadsTheProcess) {
  ::setenv("LOCKSTEP_ENV_TEST", "here", 1);
  EXPECT_EQ(base::Env().text("LOCKSTEP_ENV_TEST"), "here");
  ::unsetenv("LOCKSTEP_ENV_TEST");
  EXPECT_FALSE(base::Env().has("LOCKSTEP_ENV_TEST"));
}

}  // namespace
}  // namespace lockstep
