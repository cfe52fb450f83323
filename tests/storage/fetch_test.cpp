#include "storage/fetch.h"

#include <filesystem>
#include <sys/stat.h>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/digest.h"
#include "storage/local_copy.h"
#include "support/refusal.h"
#include "support/service.h"
#include "support/small_disk.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::string text_of(size_t size) {
  std::string text(size, '\0');
  for (size_t i = 0; i < size; ++i) {
    text[i] = static_cast<char>(i * 7 + i / 251);
  }
  return text;
}

std::string sidecar_of(const std::string& text) {
  return base::sha256_hex(text) + "  name\n";
}

// Neither parts nor stamps.
std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && !entry.path().filename().string().starts_with('.')) {
      names.push_back(entry.path().lexically_relative(folder).string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

class FetchTest : public testing::Test {
 protected:
  FetchTest() {
    fs::create_directory(folder_.at("from"));
    fs::create_directory(folder_.at("to"));
  }

  test::TempFolder folder_;
};

TEST_F(FetchTest, CopiesAFileOnce) {
  const std::string text = text_of((20u << 20) + 3);
  const std::string from = folder_.file("from/a", text, 0755);
  const storage::FetchReport first = storage::fetch(from, folder_.at("to/deep/b"));
  EXPECT_EQ(first.num_files, 1u);
  EXPECT_EQ(first.bytes_copied, text.size());
  EXPECT_TRUE(base::read_file(folder_.at("to/deep/b"), 64u << 20) == text);
  struct stat info {};
  ::stat(folder_.at("to/deep/b").c_str(), &info);
  EXPECT_EQ(info.st_mode & 0777, 0755u);

  const storage::FetchReport second = storage::fetch("file://" + from, folder_.at("to/deep/b"));
  EXPECT_EQ(second.num_skipped, 1u);
  EXPECT_EQ(second.bytes_copied, 0u);
  EXPECT_EQ(files_in(folder_.at("to")), std::vector<std::string>{"deep/b"});
}

TEST_F(FetchTest, PutsAFileIntoAFolder) {
  const std::string from = folder_.file("from/a", "x");
  storage::fetch(from, folder_.at("to"));
  storage::fetch(from, folder_.at("new/"));
  EXPECT_EQ(base::read_file(folder_.at("to/a")), "x");
  EXPECT_EQ(base::read_file(folder_.at("new/a")), "x");
}

TEST_F(FetchTest, CopiesAFolder) {
  fs::create_directories(folder_.at("from/deep/er"));
  folder_.file("from/a", text_of(10u << 20));
  folder_.file("from/empty", "");
  folder_.file("from/deep/er/b", "b");
  const storage::FetchReport report = storage::fetch(folder_.at("from/"), folder_.at("to"));
  EXPECT_EQ(report.num_files, 3u);
  EXPECT_EQ(files_in(folder_.at("to")), (std::vector<std::string>{"a", "deep/er/b", "empty"}));
  EXPECT_TRUE(base::read_file(folder_.at("to/a")) == text_of(10u << 20));
  folder_.file("from/deep/er/b", "changed");
  const storage::FetchReport again = storage::fetch(folder_.at("from"), folder_.at("to"));
  EXPECT_EQ(again.num_skipped, 2u);
  EXPECT_EQ(again.bytes_copied, 7u);
}

TEST_F(FetchTest, MendsACopyThatWasChanged) {
  const std::string from = folder_.file("from/a", text_of(100'000));
  const std::string to = folder_.at("to/a");
  storage::fetch(from, to);
  const auto time = fs::last_write_time(to);
  fs::last_write_time(to, time + std::chrono::hours(1));
  EXPECT_EQ(storage::fetch(from, to).num_skipped, 1u) << "touched, but the same";
  std::string text = text_of(100'000);
  text[77'777] ^= 1;
  folder_.file("to/a", text);
  EXPECT_EQ(storage::fetch(from, to).num_skipped, 0u) << "a bit is another";
  EXPECT_TRUE(base::read_file(to) == text_of(100'000));
  folder_.file("to/a", "short");
  EXPECT_EQ(storage::fetch(from, to).num_skipped, 0u);
  folder_.file("to/.a.fetched", "{\"no\": \"stamp\"");
  EXPECT_EQ(storage::fetch(from, to).num_skipped, 0u);
}

TEST_F(FetchTest, HonoursASidecar) {
  const std::string from = folder_.file("from/a", "weights");
  folder_.file("from/a.sha256", sidecar_of("weights"));
  storage::fetch(from, folder_.at("to/a"));
  EXPECT_EQ(storage::fetch(from, folder_.at("to/a")).num_skipped, 1u);
  folder_.file("from/a.sha256", sidecar_of("others"));
  EXPECT_THAT([&] { storage::fetch(from, folder_.at("to/a")); },
              ThrowsMessage<IoError>(AllOf(HasSubstr(from + ": its SHA-256 is"),
                                           HasSubstr("one of them is damaged"))));
  EXPECT_EQ(base::read_file(folder_.at("to/a")), "weights") << "what was there stays";
  folder_.file("from/a.sha256", "no digits");
  EXPECT_THAT([&] { storage::fetch(folder_.at("from"), folder_.at("to")); },
              ThrowsMessage<IoError>(HasSubstr("64 hexadecimal digits")));
  for (const std::string& name : files_in(folder_.at("to"))) {
    EXPECT_FALSE(name.ends_with(".lockstep-part")) << name;
  }
}

TEST_F(FetchTest, FetchesOnceForTwo) {
  const std::string from = folder_.file("from/a", text_of(30u << 20));
  storage::FetchReport reports[2];
  {
    std::jthread other([&] { reports[0] = storage::fetch(from, folder_.at("to/a")); });
    reports[1] = storage::fetch(from, folder_.at("to/a"));
  }
  EXPECT_EQ(reports[0].num_skipped + reports[1].num_skipped, 1u);
}

TEST_F(FetchTest, NamesWhatIsWrong) {
  EXPECT_THAT([&] { storage::fetch(folder_.at("absent"), folder_.at("to")); },
              ThrowsMessage<IoError>(HasSubstr("cannot list " + folder_.at("absent"))));
  EXPECT_THAT([&] { storage::fetch(folder_.at("from"), folder_.at("to")); },
              ThrowsMessage<IoError>(HasSubstr("there is no file " + folder_.at("from"))));
  const std::string from = folder_.file("from/a", "x");
  EXPECT_THAT(test::refusal([&] { storage::fetch(from, folder_.at("from")); }),
              HasSubstr("would be copied over itself"));
  EXPECT_THAT(test::refusal([&] { storage::fetch(from, ""); }), HasSubstr("has no place to go to"));
  EXPECT_THAT([&] { storage::fetch(from, folder_.at("from/a/b")); },
              ThrowsMessage<IoError>(HasSubstr("cannot make the folder of")));
}

// As a cache of weights or images is when it has grown too large.
TEST_F(FetchTest, AFullDiskIsNamedAndKeepsWhatWasThere) {
  LOCKSTEP_NEEDS("namespaces", test::disk_refusal());
  const std::string to = folder_.at("to");
  const std::string small = folder_.file("from/a", text_of(60'000));
  const std::string large = folder_.file("from/b", text_of(3u << 20));
  test::run_on_disk({.folder = to, .size = "1m"}, [&] {
    storage::fetch(small, to);
    EXPECT_THAT([&] { storage::fetch(large, to); },
                ThrowsMessage<IoError>(AllOf(HasSubstr("cannot make " + to + "/b."),
                                             HasSubstr("of 3145728 bytes"),
                                             HasSubstr("No space left on device"))));
    EXPECT_THAT([&] { storage::fetch(folder_.at("from"), to); },
                ThrowsMessage<IoError>(HasSubstr("No space left on device")));
    EXPECT_EQ(files_in(to), std::vector<std::string>{"a"}) << "neither a part nor a half file";
    EXPECT_TRUE(base::read_file(to + "/a") == text_of(60'000));
    EXPECT_EQ(storage::fetch(small, to).num_skipped, 1u);
  });
}

TEST_F(FetchTest, ADiskThatCanOnlyBeReadIsNamed) {
  LOCKSTEP_NEEDS("namespaces", test::disk_refusal());
  const std::string to = folder_.at("to");
  const std::string from = folder_.file("from/a", "x");
  test::run_on_disk({.folder = to, .can_write = false}, [&] {
    EXPECT_THAT([&] { storage::fetch(from, to + "/deep/a"); },
                ThrowsMessage<IoError>(AllOf(HasSubstr("cannot make the folder of " + to),
                                             HasSubstr("Read-only file system"))));
    EXPECT_THAT(
        [&] { storage::fetch(from, to + "/a"); },
        ThrowsMessage<IoError>(AllOf(HasSubstr(to + "/a."), HasSubstr("Read-only file system"))));
  });
}

TEST_F(FetchTest, WhoIsToldToEndLeavesNoParts) {
  storage::UnfinishedFiles unfinished;
  storage::PartFile part(folder_.at("to/a"), &unfinished);
  EXPECT_TRUE(fs::exists(part.path()));
  unfinished.delete_all();
  EXPECT_FALSE(fs::exists(part.path()));
}

}  // namespace
}  // namespace lockstep
