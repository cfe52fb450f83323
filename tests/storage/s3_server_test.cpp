// Against a real server, which checks the signatures.

#include "support/s3_server.h"

#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "storage/parallel_read.h"
#include "storage/s3_storage.h"
#include "support/service.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

std::string random_text(size_t size) {
  std::mt19937_64 dice(size);
  std::string text(size, '\0');
  for (char& c : text) {
    c = static_cast<char>(dice());
  }
  return text;
}

class S3OnAServer : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!test::s3_refusal()) {
      folder_ = std::make_unique<test::TempFolder>();
      std::filesystem::create_directory(folder_->at("models"));
      server_ = std::make_unique<test::S3Server>(folder_->path());
    }
  }
  static void TearDownTestSuite() {
    server_.reset();
    folder_.reset();
  }
  void SetUp() override { LOCKSTEP_NEEDS("s3", test::s3_refusal()); }

  static storage::S3Settings settings() {
    return storage::S3Settings::from_env(
        base::Env([](const std::string& name) -> std::optional<std::string> {
          const auto env = server_->env();
          const auto found = env.find(name);
          return found == env.end() ? std::nullopt : std::optional(found->second);
        }));
  }
  static std::unique_ptr<storage::Storage> storage(const std::string& location) {
    return std::make_unique<storage::S3Storage>(storage::parse_location(location), settings());
  }
  static void put(storage::Storage& storage, const std::string& path, std::string_view text) {
    const auto writer = storage.create(path);
    writer->append(text);
    writer->commit();
  }
  static std::string get(const storage::Storage& storage, const std::string& path) {
    const auto source = storage.open(path);
    std::string text(source->size(), '?');
    storage::read_parallel(*source, 0, std::as_writable_bytes(std::span(text)), {4, 1u << 20});
    return text;
  }

  static std::unique_ptr<test::TempFolder> folder_;
  static std::unique_ptr<test::S3Server> server_;
};

std::unique_ptr<test::TempFolder> S3OnAServer::folder_;
std::unique_ptr<test::S3Server> S3OnAServer::server_;

TEST_F(S3OnAServer, WritesFindsReadsAndRemoves) {
  const auto place = storage("s3://models/gpt2");
  put(*place, "deep/weights.bin", "0123456789");
  put(*place, "empty", "");
  EXPECT_EQ(place->find("deep/weights.bin")->size_bytes, 10u);
  EXPECT_FALSE(place->find("absent"));
  const auto source = place->open("deep/weights.bin");
  EXPECT_EQ(source->name(), "s3://models/gpt2/deep/weights.bin");
  EXPECT_EQ(source->read_text(3, 4), "3456");
  EXPECT_EQ(source->read_text(10, 0), "");
  EXPECT_THROW(source->read_text(7, 4), FormatError);
  EXPECT_EQ(get(*place, "empty"), "");
  place->remove("empty");
  place->remove("empty");
  EXPECT_FALSE(place->find("empty"));
}

TEST_F(S3OnAServer, TakesAnyKey) {
  const auto place = storage("s3://models/odd");
  for (const char* path : {"a b", "a+b", "100%", "a%20b", "\xed\x95\x9c\xea\xb8\x80/\xc3\xa9",
                           "q?x=1&y=2", "h#t", "semi;colon=", "'quoted\"", "<tag>&amp;"}) {
    put(*place, path, path);
    EXPECT_EQ(get(*place, path), path);
    const auto found = place->list(path);
    ASSERT_EQ(found.size(), 1u) << path;
    EXPECT_EQ(found[0].path, path);
    place->remove(path);
    EXPECT_FALSE(place->find(path)) << path;
  }
  EXPECT_THROW(place->open("a/../b"), UsageError);
}

TEST_F(S3OnAServer, ListsMoreThanOneAnswerHolds) {
  const auto place = storage("s3://models/many");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = t; i < 1111; i += 4) {
        put(*place, fmt::format("{:04}", i), std::string(static_cast<size_t>(i % 7), 'x'));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  const std::vector<storage::ObjectInfo> objects = place->list();
  ASSERT_EQ(objects.size(), 1111u);
  for (size_t i = 0; i < objects.size(); ++i) {
    EXPECT_EQ(objects[i].path, fmt::format("{:04}", i));
    EXPECT_EQ(objects[i].size_bytes, i % 7);
  }
  EXPECT_EQ(place->list("010").size(), 10u);
  EXPECT_EQ(storage("s3://models/absent")->list().size(), 0u);
}

TEST_F(S3OnAServer, UploadsInPartsAndShowsThemTogether) {
  const auto place = storage("s3://models/big");
  const std::string text = random_text((20u << 20) + 17);
  {
    const auto writer = place->create("file");
    writer->append(std::string_view(text).substr(0, 17u << 20));
    EXPECT_FALSE(place->find("file"));
  }
  EXPECT_FALSE(place->find("file"));  // aborted
  const auto writer = place->create("file");
  for (size_t at = 0; at < text.size(); at += 3'000'000) {
    writer->append(std::string_view(text).substr(at, 3'000'000));
  }
  writer->commit();
  EXPECT_EQ(get(*place, "file"), text);
}

TEST_F(S3OnAServer, SaysWhoIsNotLetIn) {
  put(*storage("s3://models/x"), "a", "a");
  storage::S3Settings wrong = settings();
  wrong.secret_key = "not-the-secret";
  const storage::S3Storage place(storage::parse_location("s3://models/x"), wrong);
  EXPECT_THAT(
      [&] { place.open("a"); },
      ThrowsMessage<IoError>(AllOf(
          HasSubstr("cannot open s3://models/x/a (http://127"), HasSubstr("access is denied (403"),
          HasSubstr("the credentials from AWS_ACCESS_KEY_ID"), Not(HasSubstr("not-the-secret")))));
  EXPECT_THAT([&] { place.list(""); },
              ThrowsMessage<IoError>(AllOf(HasSubstr("cannot list s3://models/x/"),
                                           HasSubstr("403 SignatureDoesNotMatch"))));
}

TEST_F(S3OnAServer, SaysWhatIsNotThere) {
  EXPECT_THAT([&] { storage("s3://models")->open("absent"); },
              ThrowsMessage<IoError>(AllOf(HasSubstr("cannot open s3://models/absent"),
                                           HasSubstr("there is none (404"))));
  EXPECT_THAT([&] { storage("s3://no-such-bucket")->list(""); },
              ThrowsMessage<IoError>(AllOf(HasSubstr("cannot list s3://no-such-bucket/"),
                                           HasSubstr("404 NoSuchBucket"))));
}

TEST_F(S3OnAServer, SeesThatAnObjectWasReplaced) {
  const auto place = storage("s3://models/replaced");
  put(*place, "a", "old text");
  const auto source = place->open("a");
  put(*place, "a", "new text");
  EXPECT_THAT([&] { source->read_text(0, 8); },
              ThrowsMessage<IoError>(AllOf(HasSubstr("s3://models/replaced/a at offset 0"),
                                           HasSubstr("it was replaced since it was opened"))));
}

}  // namespace
}  // namespace lockstep
