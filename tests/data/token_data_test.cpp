#include <filesystem>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/data/loader.h>
#include <lockstep/data/token_data.h>
#include <lockstep/tokenizers/tokenizer.h>

#include "base/unique_fd.h"
#include "data/data_support.h"
#include "formats/token_file.h"
#include "support/refusal.h"
#include "support/service.h"
#include "support/small_disk.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using test::all_ids;
using test::golden_tokenizer;
using test::refusal;
using test::TempFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string write_tokens(const std::string& path, formats::TokenLayout layout, uint32_t first,
                         size_t count, uint32_t step = 1) {
  std::vector<uint32_t> ids;
  for (size_t i = 0; i < count; ++i) {
    ids.push_back(first + static_cast<uint32_t>(i) * step);
  }
  formats::TokenWriter writer(path, layout, count);
  writer.append(ids);
  writer.finish();
  return path;
}

std::vector<int64_t> sample(const Dataset& data, int64_t index) {
  const at::Tensor row = data.batch(std::vector<SampleKey>{{.index = index}}).input;
  return {row.const_data_ptr<int64_t>(), row.const_data_ptr<int64_t>() + row.numel()};
}

TEST(TokenData, CutsEachFileIntoSequencesAndDropsItsTail) {
  const TempFolder folder;
  const auto data = open_tokens(
      {write_tokens(folder.at("a.bin"), formats::TokenLayout::LlmcGpt2, 0, 11),
       write_tokens(folder.at("b.bin"), formats::TokenLayout::LlmcGpt2, 500, 3),
       write_tokens(folder.at("c.bin"), formats::TokenLayout::NanoGpt, 100, 8),
       write_tokens(folder.at("d.bin"), formats::TokenLayout::LlmcLlama3, 70000, 9, 1000)},
      {.sequence_length = 4});
  ASSERT_EQ(data->size(), 2 + 0 + 2 + 2);
  EXPECT_THAT(sample(*data, 0), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(sample(*data, 1), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(sample(*data, 2), ElementsAre(100, 101, 102, 103));
  EXPECT_THAT(sample(*data, 3), ElementsAre(104, 105, 106, 107));
  EXPECT_THAT(sample(*data, 5), ElementsAre(74000, 75000, 76000, 77000));
  const Batch batch = data->batch(std::vector<SampleKey>{{.index = 5}, {.index = 0}});
  EXPECT_EQ(batch.input.sizes(), (std::vector<int64_t>{2, 4}));
  EXPECT_TRUE(batch.input.equal(batch.target));
  EXPECT_EQ(batch.input[1][3].item<int64_t>(), 3);
}

TEST(TokenData, RefusesWhatItCannotRead) {
  const TempFolder folder;
  const std::string file = write_tokens(folder.at("a.bin"), formats::TokenLayout::LlmcGpt2, 0, 11);
  EXPECT_THAT(refusal([&] { open_tokens({file}, {.sequence_length = 12}); }),
              HasSubstr("not one whole sample of 12 tokens"));
  EXPECT_THAT(refusal([&] { open_tokens({file}, {.sequence_length = 0}); }),
              HasSubstr("sequence_length is 0"));
  EXPECT_THAT(refusal([] { open_tokens({}); }), HasSubstr("no file"));
  EXPECT_THROW(open_tokens({folder.at("absent.bin")}), IoError);
  EXPECT_THROW(open_tokens({folder.file("odd.bin", "abc")}), FormatError);
  const auto data = open_tokens({file}, {.sequence_length = 5, .vocab_size = 9});
  EXPECT_THAT(sample(*data, 0), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT([&] { sample(*data, 1); },
              ThrowsMessage<FormatError>(HasSubstr("id 9 among the tokens 5 to 9 is not below 9")));
}

// A text of many lines, some of them empty, and so long that it has several pieces.
std::string long_text(size_t size) {
  std::string text;
  for (size_t i = 0; text.size() < size; ++i) {
    text += fmt::format("Line {} of a text, with words: running, 서울 and {}.\n", i, i * i % 97);
    text += i % 5 == 0 ? "\n" : "";
  }
  return text;
}

std::string long_json(size_t size) {
  std::string text;
  for (size_t i = 0; text.size() < size; ++i) {
    text += fmt::format("{{\"id\": {}, \"body\": \"document {}\\nwith two lines\"}}\n", i, i);
  }
  return text;
}

void tokenize(TokenizeOptions options, int num_ranks) {
  options.num_ranks = num_ranks;
  for (options.rank = 0; options.rank < num_ranks; ++options.rank) {
    tokenize_share(options);
  }
  options.rank = 0;
  join_token_shares(options);
}

TEST(Tokenize, TheIdsAreThoseOfTheWholeTextWhateverTheRanks) {
  const TempFolder folder;
  const std::string text = long_text(900'000);
  for (const char* kind : {"bpe", "uncased"}) {
    TokenizeOptions options{.inputs = {folder.file("a.txt", text), folder.file("b.txt", "Bye.")},
                            .tokenizer = golden_tokenizer(kind),
                            .output = {}};
    const Tokenizer tokenizer = load_tokenizer(options.tokenizer);
    std::vector<int64_t> expected;
    for (const std::string& document : {text, std::string("Bye.")}) {
      for (const int32_t id : tokenizer.encode(document, {.add_special_tokens = false})) {
        expected.push_back(id);
      }
      if (const auto end = tokenizer.special_ids().end) {
        expected.push_back(*end);
      }
    }
    for (const int num_ranks : {1, 3, 8}) {
      options.output = folder.at(fmt::format("{}-{}.bin", kind, num_ranks));
      tokenize(options, num_ranks);
      EXPECT_EQ(all_ids(options.output), expected) << kind << " on " << num_ranks << " ranks";
    }
  }
}

TEST(Tokenize, JsonLinesAreDocuments) {
  const TempFolder folder;
  TokenizeOptions options{.inputs = {folder.file("a.jsonl", long_json(600'000))},
                          .tokenizer = golden_tokenizer("bpe"),
                          .output = folder.at("a.bin"),
                          .text_field = "body"};
  tokenize(options, 4);
  const auto ids = all_ids(options.output);
  options.output = folder.at("b.bin");
  tokenize(options, 1);
  EXPECT_EQ(ids, all_ids(options.output));
  const Tokenizer tokenizer = load_tokenizer(options.tokenizer);
  const auto first = tokenizer.encode("document 0\nwith two lines");
  ASSERT_GE(ids.size(), first.size());
  EXPECT_TRUE(std::equal(first.begin(), first.end(), ids.begin()));
}

TEST(Tokenize, IsDoneOnceAndAgainWhenSomethingChanged) {
  const TempFolder folder;
  const TokenizeOptions options{.inputs = {folder.file("a.txt", "one two three")},
                                .tokenizer = golden_tokenizer("uncased"),
                                .output = folder.at("a.bin")};
  EXPECT_FALSE(tokens_are_current(options));
  tokenize(options, 2);
  EXPECT_TRUE(tokens_are_current(options));
  size_t num_files = 0;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    ++num_files;
    EXPECT_EQ(entry.path().string().find("share"), std::string::npos) << entry.path();
  }
  EXPECT_EQ(num_files, 3u) << "the input, the tokens and the note";
  const auto made = fs::last_write_time(options.output);
  tokenize(options, 5);
  EXPECT_EQ(fs::last_write_time(options.output), made);

  folder.file("a.txt", "one two three four");
  EXPECT_FALSE(tokens_are_current(options));
  const auto before = all_ids(options.output);
  tokenize(options, 1);
  EXPECT_EQ(all_ids(options.output).size(), before.size() + 1);
  fs::resize_file(options.output, 1000);
  EXPECT_FALSE(tokens_are_current(options));
  folder.file("a.bin.json", "no JSON");
  EXPECT_FALSE(tokens_are_current(options));
  tokenize(options, 1);
  EXPECT_TRUE(tokens_are_current(options));
}

// A token has four bytes while it is in a share, and two in the file.
TEST(Tokenize, AFullDiskIsNamedAndLeavesNoHalfFile) {
  LOCKSTEP_NEEDS("namespaces", test::disk_refusal());
  const TempFolder folder;
  fs::create_directory(folder.at("disk"));
  std::string text;
  for (int i = 0; i < 150'000; ++i) {
    text += i % 3 == 0 ? "word " : "words, ";
  }
  TokenizeOptions options{.inputs = {folder.file("a.txt", "one two three")},
                          .tokenizer = golden_tokenizer("uncased"),
                          .output = folder.at("disk/a.bin")};
  const auto files = [&] {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder.at("disk"))) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  };
  const auto full = ThrowsMessage<IoError>(
      ::testing::AllOf(HasSubstr(options.output), HasSubstr("No space left on device")));
  options.inputs = {folder.file("b.txt", text)};
  tokenize(options, 1);
  const size_t num_tokens = all_ids(options.output).size();
  fs::remove(options.output);
  fs::remove(options.output + ".json");
  for (const size_t bytes_per_token : {2, 5}) {  // for half of a share; for one, but no file more
    SCOPED_TRACE(bytes_per_token);
    const std::string size = fmt::format("{}k", num_tokens * bytes_per_token / 1024);
    options.inputs = {folder.at("a.txt")};
    test::run_on_disk({.folder = folder.at("disk"), .size = size}, [&] {
      tokenize(options, 1);
      const auto before = all_ids(options.output);
      options.inputs = {folder.at("b.txt")};
      EXPECT_THAT([&] { tokenize(options, 1); }, full);
      EXPECT_EQ(all_ids(options.output), before) << "what was there stays whole";
      EXPECT_FALSE(tokens_are_current(options));
      for (const std::string& name : files()) {
        EXPECT_EQ(name.find("lockstep-part"), std::string::npos) << name;
      }
      // With a text that fits, all is well again.
      options.inputs = {folder.file("c.txt", "four five")};
      tokenize(options, 1);
      EXPECT_TRUE(tokens_are_current(options));
      EXPECT_THAT(files(), ElementsAre("a.bin", "a.bin.json"));
    });
  }
}

TEST(Tokenize, SaysWhatIsWrong) {
  const TempFolder folder;
  TokenizeOptions options{.inputs = {folder.file("a.jsonl", "{\"text\": \"a\"}\n\n{\"tex\": 1}\n")},
                          .tokenizer = golden_tokenizer("uncased"),
                          .output = folder.at("a.bin")};
  EXPECT_THAT([&] { tokenize_share(options); },
              ThrowsMessage<FormatError>(HasSubstr("a.jsonl: the line at offset 15: \"text\" is "
                                                   "missing")));
  options.inputs = {folder.file("b.jsonl", "{\"text\": \"a\"\n")};
  EXPECT_THAT([&] { tokenize_share(options); }, ThrowsMessage<FormatError>(HasSubstr("not JSON")));
  options.inputs = {folder.file("c.jsonl", "[1]\n")};
  EXPECT_THAT([&] { tokenize_share(options); },
              ThrowsMessage<FormatError>(HasSubstr("not an obj")));
  options.inputs = {folder.file("d.txt", "")};
  tokenize_share(options);
  EXPECT_THAT([&] { join_token_shares(options); },
              ThrowsMessage<FormatError>(HasSubstr("it has no text")));
  options.inputs = {folder.file("e.txt", "word")};
  EXPECT_THAT([&] { join_token_shares(options); },
              ThrowsMessage<FormatError>(HasSubstr("was made from other inputs")));
  options.num_ranks = 2;
  EXPECT_THAT([&] { join_token_shares(options); },
              ThrowsMessage<FormatError>(HasSubstr("did rank 0 call tokenize_share()")));
  options.rank = 2;
  EXPECT_THAT(refusal([&] { tokenize_share(options); }), HasSubstr("rank 2 is not in [0, 2)"));
  options.rank = 0;
  options.inputs = {folder.at("absent.txt")};
  EXPECT_THROW(tokenize_share(options), IoError);
  options.output = "s3://bucket/a.bin";
  EXPECT_THAT(refusal([&] { tokenize_share(options); }), HasSubstr("a file that all ranks see"));
  EXPECT_THAT(refusal([] { tokenize_share({}); }), HasSubstr("it needs inputs"));
}

}  // namespace
}  // namespace lockstep
