// What a recipe makes of its data: which samples are held out, and ids that fit the model.
#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/data/distributed_sampler.h>
#include <lockstep/models/auto_model.h>
#include <lockstep/models/bert.h>
#include <lockstep/tokenizers/tokenizer.h>

#include "support/temp_folder.h"
#include "train/recipes/byte_text.h"
#include "train/recipes/recipe.h"
#include "train/tiny_bert.h"

namespace lockstep {
namespace {

using test::TempFolder;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

train::Ingredients make(const std::string& toml) {
  base::Config config = base::Config::from_text(toml);
  Group group = make_single_group();
  return train::read_recipe(config)->make(group);
}

std::string setting(const char* key, const std::string& value) {
  return std::string(key) + " = \"" + value + "\"\n";
}

// The first letter of each sample, in order.
std::string letters(const Dataset& data) {
  std::string all;
  for (int64_t i = 0; i < data.size(); ++i) {
    const SampleKey key{.index = i};
    all += static_cast<char>(data.batch({&key, 1}).input[0][0].item<int64_t>());
  }
  return all;
}

TEST(HeldOut, IsDrawnBySeedAndNeverTrainedOn) {
  const TempFolder folder;
  const std::string alphabet = "abcdefghijklmnopqrstuvwxyz";
  const auto data = train::open_byte_text({folder.file("a.txt", alphabet)}, 1);
  std::set<std::string> draws;
  for (const int64_t seed : {1, 2, 3}) {
    const TrainerData parts = train::split_held_out(data, {.share = 0.2, .seed = seed});
    const std::string held_out = letters(*parts.held_out);
    const std::string train = letters(*parts.train);
    EXPECT_EQ(held_out.size(), 6u);
    EXPECT_TRUE(std::is_sorted(held_out.begin(), held_out.end())) << held_out;
    EXPECT_TRUE(std::is_sorted(train.begin(), train.end())) << train;
    std::string both;
    std::merge(held_out.begin(), held_out.end(), train.begin(), train.end(),
               std::back_inserter(both));
    EXPECT_EQ(both, alphabet);
    EXPECT_EQ(held_out,
              letters(*train::split_held_out(data, {.share = 0.2, .seed = seed}).held_out));
    // What the documentation promises: torch.randperm's first ones.
    std::string first;
    for (const int64_t i :
         DistributedSampler({.num_samples = 26, .seed = static_cast<uint64_t>(seed)}).indices(0)) {
      first += alphabet[static_cast<size_t>(i)];
    }
    first.resize(6);
    std::sort(first.begin(), first.end());
    EXPECT_EQ(held_out, first);
    draws.insert(held_out);
  }
  EXPECT_EQ(draws.size(), 3u) << "another seed, other samples";
}

TEST(HeldOut, EveryShareOfEverySizeIsAPartition) {
  const TempFolder folder;
  for (const size_t size : {2u, 3u, 10u, 101u}) {
    const auto data = train::open_byte_text({folder.file("a.txt", std::string(size, 'x'))}, 1);
    for (const double share : {0.01, 0.3, 0.5, 0.9}) {
      if (std::ceil(static_cast<double>(size) * share) >= static_cast<double>(size)) {
        EXPECT_THROW(train::split_held_out(data, {.share = share}), UsageError);
        continue;
      }
      const TrainerData parts = train::split_held_out(data, {.share = share});
      EXPECT_EQ(parts.train->size() + parts.held_out->size(), data->size());
      const SampleKey last{.index = parts.train->size() - 1}, beyond{.index = parts.train->size()};
      EXPECT_EQ(parts.train->batch({&last, 1}).input.numel(), 1);
      EXPECT_THROW(parts.train->batch({&beyond, 1}), UsageError);
    }
    EXPECT_EQ(train::split_held_out(data, {.share = 0}).held_out, nullptr);
  }
}

// 0.07 * 100 is 7.000000000000001 in doubles.
TEST(HeldOut, AShareIsNotRoundedUpByTheLastBit) {
  const TempFolder folder;
  const auto data = train::open_byte_text({folder.file("a.txt", std::string(100, 'x'))}, 1);
  ASSERT_EQ(data->size(), 100);
  for (int percent = 1; percent <= 90; ++percent) {
    const TrainerData parts = train::split_held_out(data, {.share = percent / 100.0});
    EXPECT_EQ(parts.held_out->size(), percent);
  }
}

TEST(HeldOut, ATextOfItsOwnIsJudgedByAsAWhole) {
  const TempFolder folder;
  const std::string more = folder.file("b.txt", std::string(256, 'b'));
  const std::string toml =
      "recipe = \"mytransformer\"\n[model]\nhidden_size = 8\n[data]\n"
      "sequence_length = 64\n" +
      setting("text", folder.file("a.txt", std::string(640, 'a')));
  const train::Ingredients drawn = make(toml);
  EXPECT_EQ(drawn.data.train->size(), 9);
  EXPECT_EQ(drawn.held_out, "judged by 1 of the 10 sequences, drawn with data.held_out_seed = 1");
  const train::Ingredients given = make(toml + setting("held_out", more));
  EXPECT_EQ(letters(*given.data.train), std::string(10, 'a'));
  EXPECT_EQ(letters(*given.data.held_out), std::string(4, 'b'));
  EXPECT_EQ(given.held_out, "judged by the 4 sequences of " + more);
}

const std::string kVocabulary = "[UNK]\n[CLS]\n[SEP]\n[PAD]\nthe\nfilm\nis\nfine\ndull\n";

// With its tokenizer made before its text.
std::string word_recipe(const TempFolder& folder, int vocab_size) {
  return "recipe = \"mytransformer\"\n[model]\nhidden_size = 8\nvocab_size = " +
         std::to_string(vocab_size) + "\n[data]\nsequence_length = 2\n" +
         setting("tokenizer", folder.file("vocab.txt", kVocabulary)) +
         setting("text", folder.file("a.txt", "the film is fine\nthe film is dull\n"));
}

TEST(Language, OfJsonLinesTheTextsAreRead) {
  const TempFolder folder;
  const std::string lines =
      "{\"text\": \"abc\", \"label\": 7}\n\n{\"id\": 1, \"text\": \"\\u00e9\"}\n";
  const auto data =
      train::open_byte_text({folder.file("a.txt", "xy"), folder.file("b.jsonl", lines)}, 1);
  EXPECT_EQ(letters(*data), "xyabc\n\xc3\xa9\n") << "as with a tokenizer, not their JSON";
  EXPECT_THAT(
      [&] { train::open_byte_text({folder.file("c.jsonl", "{\"text\": \"a\"}\n{}\n")}, 1); },
      ThrowsMessage<FormatError>(HasSubstr("c.jsonl:2")));
}

TEST(Language, ATextInUtf16IsRefused) {
  const TempFolder folder;
  const std::string text("\xff\xfeh\0i\0", 6);
  EXPECT_THAT(
      [&] { train::open_byte_text({folder.file("notes.txt", text)}, 1); },
      ThrowsMessage<FormatError>(AllOf(HasSubstr("notes.txt is in UTF-16"), HasSubstr("iconv"))));
  EXPECT_EQ(letters(*train::open_byte_text({folder.file("short.txt", "\xff")}, 1)), "\xff");
}

TEST(Language, APromptIsMadeIntoIdsAsTheTrainingTextIs) {
  const TempFolder folder;
  const train::Ingredients made = make(word_recipe(folder, 9));
  EXPECT_THAT(made.encode("the film"), ElementsAre(4, 5)) << "neither [CLS] nor [SEP]";
  EXPECT_EQ(made.decode({4, 5, 7}), "the film fine");
}

TEST(Language, ATokenizerWithMoreIdsThanTheModelHasIsRefusedAtTheStart) {
  const TempFolder folder;
  EXPECT_THAT(
      [&] { make(word_recipe(folder, 8)); },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("vocab.txt has ids up to 8"),
                                      HasSubstr("(model.vocab_size) is 8"), HasSubstr("to 9"))));
}

TEST(Classify, ALabelThatTheLogitsHaveNotIsASentence) {
  const at::Tensor logits = at::zeros({3, 4});
  EXPECT_EQ(
      classify(logits, at::tensor({int64_t{0}, int64_t{3}, kCorruptTarget})).num_counted.value(),
      2);
  for (const int64_t label : {int64_t{4}, int64_t{-1}}) {
    EXPECT_THAT(
        [&] {
          classify(logits, at::tensor({int64_t{0}, label, int64_t{1}}));
        },
        ThrowsMessage<UsageError>(
            HasSubstr("label " + std::to_string(label) + " is not in [0, 4)")));
  }
}

// [PAD] is 3 for the tokenizer and 0, its [UNK], for config.json.
std::string make_bert(const TempFolder& folder, int64_t vocab_size) {
  test::write_bert(folder.at("bert"),
                   {.vocab_size = vocab_size,
                    .hidden_size = 8,
                    .num_layers = 2,
                    .num_heads = 2,
                    .ffn_size = 16,
                    .max_positions = 16,
                    .pad_token = 0,
                    .initializer_range = 0.5},
                   kVocabulary);
  return folder.at("bert");
}

std::string bert_recipe(const TempFolder& folder, int64_t vocab_size, const std::string& lines) {
  return "recipe = \"bert-classify\"\n[model]\n" +
         setting("pretrained", make_bert(folder, vocab_size)) +
         "[data]\nheld_out_share = 0\nmax_length = 16\n" +
         setting("train", folder.file("a.jsonl", lines));
}

TEST(Bert, PaddingIsNotSeenAndUnknownWordsAre) {
  const TempFolder folder;
  const std::vector<std::string> texts = {"fine", "the strange film is odd",
                                          "the film is [PAD] dull"};
  std::string lines;
  for (const std::string& text : texts) {
    lines += "{\"text\": \"" + text + "\", \"label\": 1}\n";
  }
  const train::Ingredients made = make(bert_recipe(folder, 9, lines));
  made.task->module()->eval();
  const at::NoGradGuard no_grad;
  auto model = std::dynamic_pointer_cast<BertForSequenceClassificationImpl>(made.task->module());
  ASSERT_NE(model, nullptr);
  std::vector<at::Tensor> alone;  // no padding, so no mask
  for (const std::string& text : texts) {
    const auto ids = made.encode(text);
    alone.push_back(model->forward(
        {.ids_BT = at::tensor(ids).unsqueeze(0), .attention_mask_BT = {}, .token_types_BT = {}}));
  }
  std::vector<SampleKey> keys = {{.index = 0}, {.index = 1}, {.index = 2}};
  const Batch batch = made.data.train->batch(keys);
  EXPECT_EQ(batch.input[0][3].item<int64_t>(), 3) << "filled up with the tokenizer's [PAD]";
  const TaskOutput together = made.task->forward(batch);
  const TaskOutput expected = classify(at::cat(alone), batch.target);
  EXPECT_NEAR(together.loss.item<double>(), expected.loss.item<double>(), 1e-5);
}

TEST(Bert, ATokenizerWithMoreIdsThanTheModelHasIsRefusedAtTheStart) {
  const TempFolder folder;
  EXPECT_THAT([&] { make(bert_recipe(folder, 7, "{\"text\": \"fine\", \"label\": 1}\n")); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("ids up to 8"), HasSubstr("is 7"))));
}

TEST(Bert, ALineWithoutATextIsFoundAtTheStart) {
  const TempFolder folder;
  const std::string lines = "{\"text\": \"fine\", \"label\": 1}\n{\"txt\": \"a\", \"label\": 0}\n";
  EXPECT_THAT([&] { make(bert_recipe(folder, 9, lines)); },
              ThrowsMessage<FormatError>(AllOf(HasSubstr("a.jsonl:2"), HasSubstr("\"text\""))));
  EXPECT_THAT([&] { make(bert_recipe(folder, 9, "text,label\nfine,1\n")); },
              ThrowsMessage<FormatError>(HasSubstr("each line must be an object of its own")));
}

TEST(Bert, LabelsThatAreAllEqualAreToldOnce) {
  const TempFolder folder;
  std::string told;
  log::set_sink([&](log::Level, std::string_view line) { told += std::string(line) + "\n"; });
  make(bert_recipe(folder, 9,
                   "{\"text\": \"fine\", \"label\": 1}\n{\"text\": \"a\", \"label\": 1}\n"));
  const std::string of_equal = std::exchange(told, "");
  make(bert_recipe(folder, 9,
                   "{\"text\": \"fine\", \"label\": 1}\n{\"text\": \"a\", \"label\": 0}\n"));
  log::set_sink({});
  EXPECT_THAT(of_equal, AllOf(HasSubstr("a.jsonl are 1, so a model only learns to answer 1"),
                              HasSubstr("data.label_field = \"label\"")));
  EXPECT_THAT(told, Not(HasSubstr("all labels")));
}

TEST(Bert, ALabelThatTheModelHasNotIsNamedWithItsPlace) {
  const TempFolder folder;
  const std::string lines = "{\"text\": \"fine\", \"label\": 1}\n{\"text\": \"a\", \"label\": 2}\n";
  EXPECT_THAT([&] { make(bert_recipe(folder, 9, lines)); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("a.jsonl:2: \"label\" is 2"),
                                              HasSubstr("num_labels = 2 (model.num_labels"))));
}

}  // namespace
}  // namespace lockstep
