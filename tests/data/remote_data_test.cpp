// Datasets on a real S3 server.

#include <cstdlib>
#include <filesystem>
#include <functional>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <lockstep/data/image_data.h>
#include <lockstep/data/loader.h>
#include <lockstep/data/numpy_data.h>
#include <lockstep/data/text_data.h>
#include <lockstep/data/token_data.h>

#include "data/data_support.h"
#include "formats/npy.h"
#include "formats/token_file.h"
#include "pictures/picture_files.h"
#include "support/s3_server.h"
#include "support/service.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using test::golden_tokenizer;
using test::gradient;
using test::jpeg_bytes;

class RemoteData : public ::testing::Test {
 protected:
  void SetUp() override {
    LOCKSTEP_NEEDS("s3", test::s3_refusal());
    fs::create_directories(folder_.at("buckets/data/pets/cat"));
    fs::create_directories(folder_.at("buckets/data/pets/dog"));
    const std::string picture = jpeg_bytes(gradient(60, 40));
    folder_.file("buckets/data/pets/cat/a.jpg", picture);
    folder_.file("buckets/data/pets/dog/b.jpg", picture);
    folder_.file("buckets/data/a.tar", test::tar_bytes({{"1.jpg", picture}, {"1.cls", "5"}}));
    folder_.file("buckets/data/a.txt", "one two three four five six seven");
    folder_.file("buckets/data/a.jsonl", "{\"text\": \"fine\", \"label\": 1}\n");
    formats::NpyWriter writer(folder_.at("buckets/data/y.npy"), formats::DType::I8,
                              std::vector<int64_t>{3});
    const std::string values = "\x01\x02\x03";
    writer.append(std::as_bytes(std::span(values)));
    writer.finish();
    formats::TokenWriter tokens(folder_.at("buckets/data/t.bin"), formats::TokenLayout::LlmcGpt2,
                                5);
    tokens.append(std::vector<uint32_t>{1, 2, 3, 4, 5});
    tokens.finish();
    server_ = std::make_unique<test::S3Server>(folder_.at("buckets"));
    for (const auto& [name, value] : server_->env()) {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
  }

  // The same bits as from the folder that is served.
  void expect_same(const std::function<std::shared_ptr<const Dataset>(const std::string&)>& open) {
    const auto near = open(folder_.at("buckets/data"));
    const auto far = open("s3://data");
    ASSERT_EQ(near->size(), far->size());
    std::vector<int64_t> all;
    for (int64_t i = 0; i < near->size(); ++i) {
      all.push_back(i);
    }
    Loader loader(far);
    loader.start(all, near->size(), 1, 2);
    Loader other(near);
    other.start(all, near->size(), 1, 2);
    const auto a = loader.next();
    const auto b = other.next();
    EXPECT_TRUE(a->input.equal(b->input));
    EXPECT_TRUE(a->target.equal(b->target));
  }

  const test::TempFolder folder_;
  std::unique_ptr<test::S3Server> server_;
};

TEST_F(RemoteData, HasTheBitsOfTheFolderThatIsServed) {
  expect_same([](const std::string& place) {
    return open_image_folder(place + "/pets", {.size = 8, .augment = true});
  });
  expect_same(
      [](const std::string& place) { return open_image_shards({place + "/a.tar"}, {.size = 8}); });
  expect_same([](const std::string& place) {
    return open_labelled_text(place + "/a.jsonl", {.tokenizer = golden_tokenizer("uncased")});
  });
  expect_same(
      [](const std::string& place) { return open_numpy(place + "/y.npy", place + "/y.npy"); });
  expect_same([](const std::string& place) {
    return open_tokens({place + "/t.bin", place + "/t.bin"}, {.sequence_length = 2});
  });
  const TokenizeOptions options{.inputs = {"s3://data/a.txt"},
                                .tokenizer = golden_tokenizer("uncased"),
                                .output = folder_.at("tokens.bin")};
  tokenize_share(options);
  join_token_shares(options);
  EXPECT_TRUE(tokens_are_current(options));
  EXPECT_EQ(test::all_ids(options.output).size(), 7u);
}

}  // namespace
}  // namespace lockstep
