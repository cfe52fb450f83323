// Which files are taken for the CUDA plug-in: only those of this program's own version.

#include "device/plugin.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <unistd.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/process/process.h"

namespace lockstep::device {
namespace {

std::string beside_this_program(const char* file) {
  return (std::filesystem::path(base::own_program()).parent_path() / file).string();
}

// In a process of its own, since a process looks once. Ends with 3 and the error's text.
[[noreturn]] void load_in_vain(const std::string& file) {
  setenv("LOCKSTEP_CUDA_PLUGIN", file.c_str(), 1);
  try {
    load_plugin();
  } catch (const UsageError& error) {
    std::fputs(error.what(), stderr);
    _exit(3);
  }
  _exit(0);
}

TEST(Plugin, OfAnotherVersionIsRefused) {
  const std::string file = beside_this_program("plugin_of_99.so");
  ASSERT_TRUE(std::filesystem::exists(file));
  EXPECT_EXIT(load_in_vain(file), ::testing::ExitedWithCode(3),
              fmt::format("LOCKSTEP_CUDA_PLUGIN=.*plugin_of_99.so is of version 99, this program "
                          "needs {}; build both together",
                          LOCKSTEP_CUDA_PLUGIN_VERSION));
}

TEST(Plugin, AnyOtherLibraryIsRefused) {
  const std::string file = beside_this_program("no_plugin.so");
  ASSERT_TRUE(std::filesystem::exists(file));
  EXPECT_EXIT(load_in_vain(file), ::testing::ExitedWithCode(3),
              "no_plugin.so is no plug-in of lockstep: it has no lockstep_cuda_plugin");
  EXPECT_EXIT(load_in_vain("/nowhere/plugin.so"), ::testing::ExitedWithCode(3),
              "/nowhere/plugin.so cannot be loaded");
}

}  // namespace
}  // namespace lockstep::device
