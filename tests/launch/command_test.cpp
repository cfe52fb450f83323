#include "launch/command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

using ::testing::ElementsAre;

TEST(MakeCommand, OnlyPythonFilesGetAnInterpreter) {
  EXPECT_THAT(make_command({.program = {"./train", "a.py"}}), ElementsAre("./train", "a.py"));
  EXPECT_THAT(make_command({.program = {"train.sh"}}), ElementsAre("train.sh"));
  EXPECT_THAT(make_command({.program = {"dir/train.py", "--x"}}),
              ElementsAre("python3", "-u", "dir/train.py", "--x"));
}

TEST(MakeCommand, RunPathPassesTheScriptsOwnArguments) {
  const auto command = make_command({.program = {"/x/app", "1"}, .run_path = true});
  ASSERT_EQ(command.size(), 6u);
  EXPECT_EQ(command[2], "-c");
  EXPECT_EQ(command[4], "/x/app");
  EXPECT_EQ(command[5], "1");
}

TEST(MakeCommand, RefusesWhatContradictsItself) {
  EXPECT_THROW(make_command({}), UsageError);
  EXPECT_THROW(make_command({.program = {"x"}, .module = true, .no_python = true}), UsageError);
  EXPECT_THROW(make_command({.program = {"x"}, .module = true, .run_path = true}), UsageError);
  EXPECT_THROW(make_command({.program = {"x"}, .run_path = true, .no_python = true}), UsageError);
}

TEST(FillPlaceholders, OnlyExactNamesInArguments) {
  const RankNumbers numbers{.rank = 5, .local_rank = 1, .world_size = 8};
  EXPECT_THAT(fill_placeholders(
                  {"{rank}", "--rank={rank}/{world_size}", "{local_rank}{local_rank}"}, numbers),
              ElementsAre("{rank}", "--rank=5/8", "11"));
  EXPECT_THAT(fill_placeholders({"x", "{node}", "{ rank }", "{{rank}}", "{}", "{rank"}, numbers),
              ElementsAre("x", "{node}", "{ rank }", "{5}", "{}", "{rank"));
}

TEST(FillPlaceholders, ABackslashKeepsThem) {
  const RankNumbers numbers{.rank = 5, .local_rank = 1, .world_size = 8};
  EXPECT_THAT(fill_placeholders(
                  {"x", "\\{rank}", "a\\{local_rank}b{rank}", "\\{rank}{rank}", "\\n"}, numbers),
              ElementsAre("x", "{rank}", "a{local_rank}b5", "{rank}5", "\\n"));
}

TEST(FillPlaceholders, AShellsVariableIsItsOwnButTorchrunsIsReplaced) {
  const RankNumbers numbers{.rank = 5, .local_rank = 1, .world_size = 8};
  EXPECT_THAT(fill_placeholders({"sh", "-c", "echo ${rank} $rank ${local_rank}"}, numbers),
              ElementsAre("sh", "-c", "echo ${rank} $rank 1"));
}

}  // namespace
}  // namespace lockstep
