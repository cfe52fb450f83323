#include "storage/folder_storage.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::vector<std::string> paths_of(const std::vector<storage::ObjectInfo>& objects) {
  std::vector<std::string> paths;
  for (const storage::ObjectInfo& object : objects) {
    paths.push_back(object.path);
  }
  return paths;
}

void put(storage::Storage& storage, const std::string& path, const std::string& text) {
  const auto writer = storage.create(path);
  writer->append(text);
  writer->commit();
}

TEST(FolderStorage, WritesListsReadsAndRemoves) {
  const test::TempFolder folder;
  const auto storage = storage::open_storage("file://" + folder.path());
  put(*storage, "b", "12345");
  put(*storage, "deep/er/a", "");
  put(*storage, "deep/c d+%", "1");
  std::filesystem::create_symlink(folder.at("b"), folder.at("link"));
  std::filesystem::create_symlink(folder.at("absent"), folder.at("dangling"));
  std::filesystem::create_directory_symlink(folder.path(), folder.at("loop"));
  EXPECT_THAT(paths_of(storage->list()), ElementsAre("b", "deep/c d+%", "deep/er/a", "link"));
  EXPECT_THAT(paths_of(storage->list("deep/")), ElementsAre("deep/c d+%", "deep/er/a"));
  EXPECT_THAT(paths_of(storage->list("deep/c")), ElementsAre("deep/c d+%"));
  EXPECT_THAT(paths_of(storage->list("de")), ElementsAre("deep/c d+%", "deep/er/a"));
  EXPECT_THAT(storage->list("absent/x"), ElementsAre());

  EXPECT_EQ(storage->find("b")->size_bytes, 5u);
  EXPECT_FALSE(storage->find("deep"));
  EXPECT_FALSE(storage->find("b/x"));
  EXPECT_EQ(storage->open("b")->read_text(1, 3), "234");
  EXPECT_EQ(storage::open_source(folder.at("b"))->read_text(0, 5), "12345");
  storage->remove("b");
  storage->remove("b");
  EXPECT_FALSE(storage->find("b"));
}

TEST(FolderStorage, ShowsAFileOnlyWhenItIsWhole) {
  const test::TempFolder folder;
  const auto storage = storage::open_storage(folder.path());
  put(*storage, "a", "old");
  {
    const auto writer = storage->create("a");
    writer->append("new");
    EXPECT_THAT(paths_of(storage->list()), ElementsAre("a"));
    EXPECT_EQ(storage->open("a")->read_text(0, 3), "old");
  }
  EXPECT_EQ(storage->open("a")->read_text(0, 3), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

// Names that look unfinished to others are files like any.
TEST(FolderStorage, ListsTheFilesOfOthers) {
  const test::TempFolder folder;
  folder.file("corpus.0001.part", "a");
  folder.file("corpus.node1.part", "b");
  folder.file("movie.part", "c");
  folder.file("model.4711.lockstep-part", "a killed lockstep left it");
  EXPECT_THAT(paths_of(storage::open_storage(folder.path())->list()),
              ElementsAre("corpus.0001.part", "corpus.node1.part", "movie.part"));
}

TEST(FolderStorage, MakesAFileOnlyIfThereIsNone) {
  const test::TempFolder folder;
  const auto storage = storage::open_storage(folder.path());
  EXPECT_TRUE(storage->create_new("deep/a", "first"));
  EXPECT_FALSE(storage->create_new("deep/a", "second"));
  EXPECT_EQ(storage->open("deep/a")->read_text(0, 5), "first");
}

TEST(FolderStorage, NamesWhatItCannotDo) {
  const test::TempFolder folder;
  const auto storage = storage::open_storage(folder.path());
  EXPECT_THROW(storage->open("absent"), IoError);
  EXPECT_THROW(storage->open("../a"), UsageError);
  EXPECT_THROW(storage->list("../"), UsageError);
  EXPECT_THROW(storage->remove("/etc/x"), UsageError);
  EXPECT_THAT([&] { storage::open_storage(folder.at("absent"))->list(); },
              ThrowsMessage<IoError>(HasSubstr("cannot list " + folder.at("absent"))));
  folder.file("a", "");
  EXPECT_THAT([&] { storage->create("a/b"); },
              ThrowsMessage<IoError>(HasSubstr("cannot make the folder " + folder.at("a"))));
  std::filesystem::create_directory(folder.at("f"));
  EXPECT_THAT([&] { storage->remove("f"); },
              ThrowsMessage<IoError>(HasSubstr("cannot remove " + folder.at("f"))));
}

}  // namespace
}  // namespace lockstep
