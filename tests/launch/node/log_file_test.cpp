#include "launch/node/log_file.h"

#include <filesystem>
#include <sys/stat.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "launch/node/log_folder.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

TEST(LogFile, AFullDiskIsSaidOnceAndTheFileGivenUp) {
  int num_warnings = 0;
  log::set_sink([&](log::Level, std::string_view line) {
    ++num_warnings;
    EXPECT_NE(line.find("/dev/full"), std::string_view::npos);
    EXPECT_NE(line.find("No space left on device"), std::string_view::npos);
  });
  launch::LogFile file("/dev/full");
  EXPECT_TRUE(file.is_open());
  file.write("hello");
  EXPECT_FALSE(file.is_open());
  file.write("hello");
  log::set_sink({});
  EXPECT_EQ(num_warnings, 1);
}

TEST(LogFile, ALinkThatSomebodyPlantedIsNotFollowed) {
  const test::TempFolder folder;
  const std::string victim = folder.file("victim", "precious");
  std::filesystem::create_symlink(victim, folder.at("stdout.log"));
  EXPECT_THROW(launch::LogFile(folder.at("stdout.log")), IoError);
  EXPECT_EQ(base::read_file(victim), "precious");
}

TEST(LogFolder, NoLinkIsFollowedAndARanksFolderIsNew) {
  const test::TempFolder folder;
  const launch::OutputOptions output{.log_dir = folder.path()};
  const auto make = [&](const std::string& run) {
    launch::NodePlan node;
    for (const char* rank : {"rank_0", "rank_1"}) {
      node.workers.push_back(
          {.log_folder = fmt::format("{}/{}/attempt_0/{}", folder.path(), run, rank)});
    }
    launch::make_log_folders(output, {node});
  };
  make("a");
  EXPECT_EQ(std::filesystem::status(folder.at("a/attempt_0")).permissions(),
            std::filesystem::perms::owner_all);
  EXPECT_THROW(make("a"), UsageError) << "rank_0 is there";
  std::filesystem::create_directory(folder.at("b"));
  make("b");  // another node of the same run was first
  std::filesystem::create_directory(folder.at("victim"));
  std::filesystem::create_symlink(folder.at("victim"), folder.at("c"));
  EXPECT_THROW(make("c"), UsageError);
  EXPECT_TRUE(std::filesystem::is_empty(folder.at("victim")));
}

TEST(LogFolder, TheModeIsTheOneAskedForWhateverTheUmask) {
  const test::TempFolder folder;
  const launch::OutputOptions output{.log_dir = folder.at("logs"), .folder_mode = 0755};
  const launch::NodePlan node{.workers = {{.log_folder = folder.at("logs/a/attempt_0/rank_0")}}};
  const mode_t before = ::umask(077);
  launch::make_log_folders(output, {node});
  ::umask(before);
  for (const char* made : {"logs", "logs/a", "logs/a/attempt_0", "logs/a/attempt_0/rank_0"}) {
    EXPECT_EQ(std::filesystem::status(folder.at(made)).permissions(),
              static_cast<std::filesystem::perms>(0755))
        << made;
  }
}

TEST(LogFile, NoneIsFineAndAnImpossibleOneIsNot) {
  launch::LogFile none;
  none.write("nobody reads this");
  EXPECT_FALSE(none.is_open());
  EXPECT_THROW(launch::LogFile("/no/such/folder/file"), IoError);
}

}  // namespace
}  // namespace lockstep
