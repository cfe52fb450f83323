#include "launch/flags/command.h"

#include <filesystem>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "support/temp_folder.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;

TEST(MakeCommand, OnlyPythonFilesGetAnInterpreter) {
  EXPECT_THAT(launch::make_command({.program = {"./train", "a.py"}}),
              ElementsAre("./train", "a.py"));
  EXPECT_THAT(launch::make_command({.program = {"train.sh"}}), ElementsAre("train.sh"));
  EXPECT_THAT(launch::make_command({.program = {"dir/train.py", "--x"}}),
              ElementsAre("python3", "-u", "dir/train.py", "--x"));
}

// torchrun gives everything to Python; here what can be executed is.
TEST(MakeCommand, WhatOnlyPythonCanRunGetsItToo) {
  const test::TempFolder folder;
  const auto command_of = [&](const std::string& program, bool is_here = true) {
    return launch::make_command({.program = {program, "a"}, .is_here = is_here});
  };
  const auto python = [](const std::string& program) {
    return std::vector<std::string>{"python3", "-u", program, "a"};
  };
  const std::string plain = folder.file("train", "print(1)\n");
  EXPECT_EQ(command_of(plain), python(plain));
  EXPECT_THAT(command_of(plain, false), ElementsAre(plain, "a")) << "in an image nobody can look";
  const std::string named = folder.file("train.txt", "#!/usr/bin/env python3\nprint(1)\n");
  EXPECT_EQ(command_of(named), python(named));
  for (const int mode : {0644, 0755}) {
    const std::string zip = folder.file(fmt::format("app{}.zip", mode), "PK\x03\x04...", mode);
    EXPECT_EQ(command_of(zip), python(zip));
  }
  std::filesystem::create_directory(folder.at("package"));
  EXPECT_EQ(command_of(folder.at("package")), python(folder.at("package")));
  const std::string program = folder.file("program", "#!/bin/sh\n", 0755);
  EXPECT_THAT(command_of(program), ElementsAre(program, "a"));
  const std::string data = folder.file("data.txt", "hello");
  EXPECT_THAT(command_of(data), ElementsAre(data, "a"));
  folder.file("sh", "print(1)\n");
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  EXPECT_THAT(command_of("sh"), ElementsAre("sh", "a")) << "the one in PATH";
  EXPECT_EQ(command_of("./sh"), python("./sh"));
  std::filesystem::current_path(before);
}

TEST(MakeCommand, RunPathPassesTheScriptsOwnArguments) {
  const auto command = launch::make_command({.program = {"/x/app", "1"}, .run_path = true});
  ASSERT_EQ(command.size(), 6u);
  EXPECT_EQ(command[2], "-c");
  EXPECT_EQ(command[4], "/x/app");
  EXPECT_EQ(command[5], "1");
}

TEST(MakeCommand, RefusesWhatContradictsItself) {
  EXPECT_THROW(launch::make_command({}), UsageError);
  EXPECT_THROW(launch::make_command({.program = {"x"}, .module = true, .no_python = true}),
               UsageError);
  EXPECT_THROW(launch::make_command({.program = {"x"}, .module = true, .run_path = true}),
               UsageError);
  EXPECT_THROW(launch::make_command({.program = {"x"}, .run_path = true, .no_python = true}),
               UsageError);
}

TEST(FillPlaceholders, OnlyExactNamesInArguments) {
  const launch::RankNumbers numbers{.rank = 5, .local_rank = 1, .world_size = 8};
  EXPECT_THAT(launch::fill_placeholders(
                  {"{rank}", "--rank={rank}/{world_size}", "{local_rank}{local_rank}"}, numbers),
              ElementsAre("{rank}", "--rank=5/8", "11"));
  EXPECT_THAT(
      launch::fill_placeholders({"x", "{node}", "{ rank }", "{{rank}}", "{}", "{rank"}, numbers),
      ElementsAre("x", "{node}", "{ rank }", "{5}", "{}", "{rank"));
}

TEST(FillPlaceholders, ABackslashKeepsThem) {
  const launch::RankNumbers numbers{.rank = 5, .local_rank = 1, .world_size = 8};
  EXPECT_THAT(launch::fill_placeholders(
                  {"x", "\\{rank}", "a\\{local_rank}b{rank}", "\\{rank}{rank}", "\\n"}, numbers),
              ElementsAre("x", "{rank}", "a{local_rank}b5", "{rank}5", "\\n"));
}

TEST(FillPlaceholders, AShellsVariableIsItsOwnButTorchrunsIsReplaced) {
  const launch::RankNumbers numbers{.rank = 5, .local_rank = 1, .world_size = 8};
  EXPECT_THAT(launch::fill_placeholders({"sh", "-c", "echo ${rank} $rank ${local_rank}"}, numbers),
              ElementsAre("sh", "-c", "echo ${rank} $rank 1"));
}

}  // namespace
}  // namespace lockstep
