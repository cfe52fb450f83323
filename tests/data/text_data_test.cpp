#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/data/loader.h>
#include <lockstep/data/text_data.h>
#include <lockstep/tokenizers/tokenizer.h>

#include "data/data_support.h"
#include "data/only_label.h"
#include "support/refusal.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using test::golden_tokenizer;
using test::refusal;
using test::TempFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr const char* kReviews =
    "{\"text\": \"a fine film\", \"label\": 1}\n"
    "\r\n"
    "{\"label\": 0, \"text\": \"it is long, and dull, and it does not end\"}\r\n"
    "{\"text\": \"\", \"label\": 2}";

std::vector<SampleKey> keys(std::initializer_list<int64_t> indices) {
  std::vector<SampleKey> result;
  for (const int64_t index : indices) {
    result.push_back({.index = index});
  }
  return result;
}

TEST(LabelledText, IsFilledUpToTheLongestOfTheBatch) {
  const TempFolder folder;
  const auto data = open_labelled_text(folder.file("a.jsonl", kReviews),
                                       {.tokenizer = golden_tokenizer("uncased")});
  ASSERT_EQ(data->size(), 3);
  const Tokenizer tokenizer = load_tokenizer(golden_tokenizer("uncased"));
  const auto first = tokenizer.encode("a fine film");
  const auto second = tokenizer.encode("it is long, and dull, and it does not end");
  const Batch batch = data->batch(keys({1, 0, 2}));
  ASSERT_EQ(batch.input.sizes(), (std::vector<int64_t>{3, std::ssize(second)}));
  EXPECT_TRUE(batch.target.equal(at::tensor({0, 1, 2}, at::kLong)));
  for (int64_t i = 0; i < std::ssize(second); ++i) {
    EXPECT_EQ(batch.input[0][i].item<int64_t>(), second[static_cast<size_t>(i)]);
    const int64_t expected =
        i < std::ssize(first) ? first[static_cast<size_t>(i)] : *tokenizer.special_ids().padding;
    EXPECT_EQ(batch.input[1][i].item<int64_t>(), expected);
    EXPECT_TRUE(batch["attention_mask"][0][i].item<bool>());
    EXPECT_EQ(batch["attention_mask"][1][i].item<bool>(), i < std::ssize(first));
  }
  EXPECT_EQ(data->batch(keys({0})).input.size(1), std::ssize(first));
}

// This tokenizer fills up with its end-of-text id, which may also be in a text.
TEST(LabelledText, TheMaskEndsBeforeTheLastIdsThatEqualThePadding) {
  const TempFolder folder;
  const auto data =
      open_labelled_text(folder.file("a.jsonl",
                                     "{\"text\": \"a<|endoftext|>b\", \"label\": 1}\n"
                                     "{\"text\": \"a fine film, and a long one\", \"label\": 0}\n"
                                     "{\"text\": \"ab<|endoftext|>\", \"label\": 1}\n"),
                         {.tokenizer = golden_tokenizer("bpe")});
  const int64_t padding = padding_id(load_tokenizer(golden_tokenizer("bpe")));
  const Batch batch = data->batch(keys({0, 1, 2}));
  EXPECT_TRUE(batch.input[0].eq(padding).any().item<bool>());
  EXPECT_FALSE(batch.input[1].eq(padding).any().item<bool>()) << "the longest one";
  // The rule, said another way: what comes before any id that is not padding.
  const at::Tensor expected = batch.input.ne(padding).flip(1).cumsum(1).flip(1).gt(0);
  EXPECT_TRUE(batch["attention_mask"].equal(expected));
  EXPECT_TRUE(batch["attention_mask"].logical_and(batch.input.eq(padding)).any().item<bool>());
}

TEST(LabelledText, IsCutAtMaxLength) {
  const TempFolder folder;
  const std::string file = folder.file("a.jsonl", kReviews);
  const auto data =
      open_labelled_text(file, {.tokenizer = golden_tokenizer("uncased"), .max_length = 5});
  EXPECT_EQ(data->batch(keys({0, 1})).input.size(1), 5);
  EXPECT_THAT(refusal([&] {
                open_labelled_text(file,
                                   {.tokenizer = golden_tokenizer("uncased"), .max_length = 1});
              }),
              HasSubstr("1"));
}

constexpr const char* kDamaged =
    "{\"text\": \"good\", \"label\": 1}\n"
    "{\"text\": \"torn\n"
    "{\"text\": \"no label\"}\n"
    "{\"text\": 3, \"label\": 1}\n"
    "{\"text\": \"a\", \"label\": -1}\n"
    "{\"text\": \"a\", \"label\": 1.5}\n"
    "7\n";

TEST(LabelledText, ACorruptLineIsFatalWithItsPlace) {
  const TempFolder folder;
  const auto data = open_labelled_text(folder.file("a.jsonl", kDamaged),
                                       {.tokenizer = golden_tokenizer("uncased")});
  const auto says = [&](int64_t index, const char* what) {
    EXPECT_THAT([&] { data->batch(keys({index})); }, ThrowsMessage<FormatError>(HasSubstr(what)));
  };
  EXPECT_EQ(data->batch(keys({0})).target[0].item<int64_t>(), 1);
  says(1, "a.jsonl:2: it is not JSON");
  says(2, "a.jsonl:3: \"label\" is missing");
  says(3, "a.jsonl:4: \"text\" is");
  says(4, "a.jsonl:5: \"label\" is -1");
  says(5, "a.jsonl:6: \"label\" is");
  says(6, "a.jsonl:7: it is number, not an object");
  EXPECT_EQ(data->num_corrupt(), 0);
}

TEST(LabelledText, ACorruptLineCanBeSkipped) {
  const TempFolder folder;
  const auto data = open_labelled_text(
      folder.file("a.jsonl", kDamaged),
      {.tokenizer = golden_tokenizer("uncased"), .on_corrupt = CorruptSample::Skip});
  std::vector<std::string> lines;
  log::set_sink([&](log::Level, std::string_view line) { lines.emplace_back(line); });
  Loader loader(data, {.num_workers = 1});
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    loader.start({0, 1, 2, 0}, 2, 0, epoch);
    const auto first = loader.next();
    const auto second = loader.next();
    EXPECT_TRUE(first->target.equal(at::tensor({int64_t{1}, kCorruptTarget})));
    EXPECT_TRUE(second->target.equal(at::tensor({kCorruptTarget, int64_t{1}})));
    EXPECT_EQ(first->input[1].count_nonzero().item<int64_t>(), 0) << "[PAD] is 0";
  }
  log::set_sink({});
  EXPECT_EQ(data->num_corrupt(), 2);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0], HasSubstr("sample 1 is skipped"));
  EXPECT_THAT(lines[0], HasSubstr("a.jsonl:2"));
}

TEST(LabelledText, ALabelThatIsNotBelowTheLabelsIsNamedWhenTheFileIsOpened) {
  const TempFolder folder;
  const std::string file = folder.file("a.jsonl", kReviews);
  const auto open = [&](const std::string& path, int64_t num_labels, CorruptSample rule) {
    return open_labelled_text(
        path,
        {.tokenizer = golden_tokenizer("uncased"), .on_corrupt = rule, .num_labels = num_labels});
  };
  EXPECT_EQ(open(file, 3, CorruptSample::Fatal)->size(), 3);
  for (const CorruptSample rule : {CorruptSample::Fatal, CorruptSample::Skip}) {
    EXPECT_THAT([&] { open(file, 2, rule); },
                ThrowsMessage<UsageError>(AllOf(HasSubstr("a.jsonl:4: \"label\" is 2"),
                                                HasSubstr("num_labels = 2"),
                                                HasSubstr("model.num_labels"))));
  }
  const std::string damaged = folder.file("b.jsonl", kDamaged);
  EXPECT_THAT([&] { open(damaged, 2, CorruptSample::Fatal); },
              ThrowsMessage<FormatError>(HasSubstr("b.jsonl:2: it is not JSON")));
  EXPECT_EQ(open(damaged, 2, CorruptSample::Skip)->num_corrupt(), 0) << "counted when it is read";
  EXPECT_THAT(refusal([&] { open(file, -1, CorruptSample::Fatal); }), HasSubstr("num_labels"));
}

TEST(LabelledText, ALabelThatIsAWordIsExplained) {
  const TempFolder folder;
  const std::string words = folder.file("a.jsonl", "{\"text\": \"a\", \"label\": \"good\"}\n");
  for (const CorruptSample rule : {CorruptSample::Fatal, CorruptSample::Skip}) {
    EXPECT_THAT(
        [&] {
          open_labelled_text(
              words,
              {.tokenizer = golden_tokenizer("uncased"), .on_corrupt = rule, .num_labels = 2});
        },
        ThrowsMessage<FormatError>(AllOf(HasSubstr("a.jsonl:1: \"label\" is the text \"good\""),
                                         HasSubstr("number the classes from 0"))));
  }
  const std::string one_of_two =
      folder.file("b.jsonl", std::string("{\"text\": \"a\", \"label\": \"good\"}\n") + kReviews);
  EXPECT_EQ(open_labelled_text(one_of_two, {.tokenizer = golden_tokenizer("uncased"),
                                            .on_corrupt = CorruptSample::Skip,
                                            .num_labels = 3})
                ->size(),
            4);
}

TEST(LabelledText, KnowsWhenAllLabelsAreTheSame) {
  const TempFolder folder;
  const auto only = [&](const std::vector<int>& labels) {
    std::string lines;
    for (const int label : labels) {
      lines += fmt::format("{{\"text\": \"a\", \"label\": {}}}\n", label);
    }
    return data::only_label(
        *open_labelled_text(folder.file("a.jsonl", lines),
                            {.tokenizer = golden_tokenizer("uncased"), .num_labels = 3}));
  };
  EXPECT_EQ(only({2, 2, 2}), 2);
  EXPECT_EQ(only({2, 0, 2}), std::nullopt);
  EXPECT_EQ(only({1}), std::nullopt) << "one text alone says nothing";
}

TEST(LabelledText, RefusesWhatCannotBeOpened) {
  const TempFolder folder;
  EXPECT_THROW(open_labelled_text(folder.at("absent"), {.tokenizer = golden_tokenizer("bpe")}),
               IoError);
  const std::string empty = folder.file("empty.jsonl", "\n \n");
  EXPECT_THAT(refusal([&] { open_labelled_text(empty, {.tokenizer = golden_tokenizer("bpe")}); }),
              HasSubstr("has no line"));
  EXPECT_THAT(refusal([&] { open_labelled_text(empty, {}); }), HasSubstr("needs a tokenizer"));
}

}  // namespace
}  // namespace lockstep
