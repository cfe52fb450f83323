// What a model needs beside its weights: kept, used without its surroundings, exported.
#include "train/model_files.h"

#include <filesystem>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>
#include <lockstep/models/auto_model.h>
#include <lockstep/models/bert.h>
#include <lockstep/models/gpt2.h>

#include "support/temp_folder.h"
#include "train/recipes/byte_text.h"
#include "train/recipes/recipe.h"
#include "train/tiny_bert.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

constexpr BertOptions kTinyBert{.vocab_size = 12,
                                .hidden_size = 8,
                                .num_layers = 1,
                                .num_heads = 2,
                                .ffn_size = 16,
                                .max_positions = 16};

// A folder of published weights, whose config.json says more than lockstep computes with.
std::string publish_bert(const test::TempFolder& folder, const std::string& more = "") {
  const std::string path = folder.at("bert");
  test::write_bert(path, kTinyBert,
                   "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nfine\nfilm\nbad\nnot\nno\nyes\n");
  Json config = Json::parse(base::read_file(path + "/config.json"));
  config["_name_or_path"] = "someone/bert";
  config["torch_dtype"] = "bfloat16";
  config["gradient_checkpointing"] = false;
  if (!more.empty()) {
    config.update(Json::parse(more));
  }
  folder.file("bert/config.json", config.dump());
  folder.file("bert/tokenizer_config.json", R"({"do_lower_case": true})");
  return path;
}

std::unique_ptr<train::Recipe> recipe_of(const std::string& toml) {
  base::Config config = base::Config::from_text(toml);
  return train::read_recipe(config);
}

std::unique_ptr<train::Recipe> bert_recipe(const test::TempFolder& folder) {
  folder.file("a.jsonl",
              "{\"text\": \"a fine film\", \"label\": 1}\n{\"text\": \"bad\", \"label\": 0}\n");
  return recipe_of(
      fmt::format("recipe = \"bert-classify\"\n[model]\npretrained = \"{0}/bert\"\n[data]\n"
                  "train = \"{0}/a.jsonl\"\nmax_length = 8\nheld_out_share = 0.5\n",
                  folder.path()));
}

TEST(ModelFiles, AreAllThatAModelIsMadeOfAgain) {
  const test::TempFolder folder;
  Group group = make_single_group();
  publish_bert(folder);
  const auto recipe = bert_recipe(folder);
  const train::Ingredients made = recipe->make(group);
  const auto ids = made.encode("a fine film");
  EXPECT_TRUE(made.files.contains("vocab.txt"));
  std::filesystem::remove_all(folder.at("bert"));
  std::filesystem::remove(folder.at("a.jsonl"));
  EXPECT_ANY_THROW(recipe->make(group));
  const train::Ingredients again = recipe->make(group, {.kept = &made.files, .with_data = false});
  EXPECT_EQ(again.encode("a fine film"), ids);
  EXPECT_EQ(again.files, made.files) << "an export of it is whole, too";
  EXPECT_EQ(again.data.train, nullptr);
  const auto then = made.task->module()->named_parameters();
  const auto now = again.task->module()->named_parameters();
  ASSERT_EQ(then.size(), now.size());
  for (const auto& item : then) {
    EXPECT_EQ(item.value().sizes(), now[item.key()].sizes()) << item.key();
  }
}

TEST(ModelFiles, AModelIsJudgedByDataOfTheirOwnWhereItsTrainingDataAreGone) {
  const test::TempFolder folder;
  Group group = make_single_group();
  publish_bert(folder);
  const train::ModelFiles files = bert_recipe(folder)->make(group).files;
  std::filesystem::rename(folder.at("a.jsonl"), folder.at("b.jsonl"));
  const auto recipe = recipe_of(
      fmt::format("recipe = \"bert-classify\"\n[model]\npretrained = \"{0}/bert\"\n[data]\n"
                  "train = \"{0}/a.jsonl\"\nmax_length = 8\nheld_out = \"{0}/b.jsonl\"\n",
                  folder.path()));
  const train::Ingredients made = recipe->make(group, {.kept = &files, .judges_only = true});
  EXPECT_EQ(made.data.held_out->size(), 2);
  EXPECT_ANY_THROW(recipe->make(group, {.kept = &files})) << "whoever trains needs them";
}

TEST(ModelFiles, TheConfigurationKeepsWhatTheOriginalSaidAndForgetsWhatIsNoLongerTrue) {
  const test::TempFolder folder;
  Group group = make_single_group();
  publish_bert(folder, R"({"id2label": {"0": "NEGATIVE", "1": "POSITIVE"},
                           "label2id": {"NEGATIVE": 0, "POSITIVE": 1}})");
  const train::Ingredients made = bert_recipe(folder)->make(group);
  const Json config = Json::parse(made.files.at("config.json"));
  EXPECT_EQ(config["id2label"]["1"], "POSITIVE");
  EXPECT_EQ(config["label2id"]["NEGATIVE"], 0);
  EXPECT_EQ(config["architectures"][0], "BertForSequenceClassification");
  EXPECT_EQ(config["problem_type"], "single_label_classification");
  EXPECT_EQ(config["gradient_checkpointing"], false);
  EXPECT_FALSE(config.contains("_name_or_path"));
  EXPECT_FALSE(config.contains("torch_dtype"));
}

TEST(ModelFiles, LabelsOfAnotherNumberAreNotTaken) {
  const ModelConfig config{.architecture = "BertForSequenceClassification", .options = [] {
                             BertOptions options = kTinyBert;
                             options.num_labels = 3;
                             return options;
                           }()};
  const auto labels = [&](const train::ModelNotes& notes) {
    return train::labels_of(train::model_config_text(config, notes));
  };
  const std::vector<std::string> usual = {"LABEL_0", "LABEL_1", "LABEL_2"};
  const std::vector<std::string> names = {"no", "maybe", "yes"};
  EXPECT_EQ(labels({}), usual);
  EXPECT_EQ(labels({.original = R"({"id2label": {"0": "a", "1": "b"}})"}), usual);
  EXPECT_EQ(labels({.original = "no JSON", .labels = names}), names);
  EXPECT_EQ(labels({.original = R"({"id2label": {"0": "a", "1": "b", "2": "c"}})"}),
            (std::vector<std::string>{"a", "b", "c"}));
}

TEST(ModelFiles, EndOfTextIsTheTokenizers) {
  const ModelConfig config{.architecture = "GPT2LMHeadModel",
                           .options = GPT2Options{.vocab_size = 300,
                                                  .hidden_size = 8,
                                                  .num_layers = 1,
                                                  .num_heads = 2,
                                                  .ffn_size = 16,
                                                  .max_positions = 16}};
  const auto ids = [&](const train::ModelNotes& notes) {
    const Json json = Json::parse(train::model_config_text(config, notes));
    return std::pair(json["bos_token_id"].dump(), json["eos_token_id"].dump());
  };
  using Pair = std::pair<std::string, std::string>;
  EXPECT_EQ(ids({}), Pair("null", "null"));
  EXPECT_EQ(ids({.original = R"({"bos_token_id": 1, "eos_token_id": 2})"}), Pair("1", "2"));
  SpecialIds specials;
  specials.begin = specials.end = 299;
  EXPECT_EQ(ids({.original = R"({"bos_token_id": 1})", .specials = specials}), Pair("299", "299"));
}

TEST(ModelFiles, ATokenizerOfBytesIsOneThatOthersRead) {
  const train::ModelFiles files = train::byte_tokenizer_files();
  const train::TokenizerFolder folder(files);
  const Tokenizer tokenizer = load_tokenizer(folder.path());
  EXPECT_EQ(tokenizer.vocab_size(), train::kByteVocabulary);
  const std::string text = "Every rank's caf\xc3\xa9\n\t 0123 \xf0\x9f\x90\x88";
  const auto ids = tokenizer.encode(text);
  EXPECT_EQ(std::vector<int64_t>(ids.begin(), ids.end()), train::encode_bytes(text));
  EXPECT_EQ(tokenizer.decode(ids), text);
}

TEST(ModelFiles, TheFolderOfATokenizerGoesAway) {
  std::string path;
  {
    const train::TokenizerFolder folder(train::byte_tokenizer_files());
    path = folder.path();
    EXPECT_TRUE(std::filesystem::exists(path + "/tokenizer.json"));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(train::TokenizerFolder(train::ModelFiles{{"config.json", "{}"}}).path(), "");
}

// Of a file that was named, not another one beside it that load_tokenizer() would prefer.
TEST(ModelFiles, ATokenizerFileIsTakenByItself) {
  const test::TempFolder folder;
  const std::string path = publish_bert(folder);
  folder.file("bert/tokenizer.json", train::byte_tokenizer_files().at("tokenizer.json"));
  const train::ModelFiles files = train::tokenizer_files(path + "/vocab.txt");
  EXPECT_FALSE(files.contains("tokenizer.json"));
  EXPECT_EQ(load_tokenizer(train::TokenizerFolder(files).path()).kind(), "wordpiece");
  EXPECT_EQ(load_tokenizer(train::TokenizerFolder(train::tokenizer_files(path)).path()).kind(),
            "byte-bpe");
}

TEST(ModelFiles, AnExportHasThemAll) {
  const test::TempFolder folder;
  Group group = make_single_group();
  publish_bert(folder);
  std::filesystem::remove(folder.at("bert/tokenizer_config.json"));
  const train::Ingredients made = bert_recipe(folder)->make(group);
  train::export_pretrained(*made.exports, made.files, folder.at("hub"));
  const Json config = Json::parse(base::read_file(folder.at("hub/tokenizer_config.json")));
  EXPECT_EQ(config["tokenizer_class"], "BertTokenizer");
  EXPECT_EQ(config["pad_token"], "[PAD]");
  EXPECT_EQ(base::read_file(folder.at("hub/config.json")), made.files.at("config.json"));
  EXPECT_TRUE(Json::parse(made.files.at("config.json")).contains("id2label"));
  EXPECT_EQ(load_tokenizer(folder.at("hub")).encode("a fine film"),
            load_tokenizer(folder.at("bert")).encode("a fine film"));
  EXPECT_NO_THROW(AutoModel::from_pretrained(folder.at("hub")));
}

}  // namespace
}  // namespace lockstep
