#include <filesystem>

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/models/auto_model.h>
#include <lockstep/models/bert.h>
#include <lockstep/models/gpt2.h>
#include <lockstep/models/my_transformer.h>
#include <lockstep/models/resnet.h>
#include <lockstep/weights/save.h>

#include "models/golden.h"
#include "models/parameter_hash.h"
#include "support/refusal.h"
#include "support/temp_folder.h"

namespace lockstep::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

std::vector<NamedTensor> state_of(const torch::nn::Module& model) {
  std::vector<NamedTensor> state;
  for (const auto& items : {model.named_parameters(), model.named_buffers()}) {
    for (const auto& item : items) {
      state.push_back({item.key(), item.value()});
    }
  }
  return state;
}

// --- parity: folders that transformers wrote
// -------------------------------------------------------

struct Case {
  const char* folder;
  const char* golden;
};
void PrintTo(const Case& one, std::ostream* out) {
  *out << one.folder;
}

class Pretrained : public testing::TestWithParam<Case> {};

TEST_P(Pretrained, ComputesWhatTheOriginalComputes) {
  const Golden golden = read_golden(GetParam().golden);
  const AutoModel model = AutoModel::from_pretrained(kGoldens + GetParam().folder);
  EXPECT_THAT(model.report().missing, IsEmpty());
  expect_close(run(*model.module(), golden), golden, 1e-5);
}

TEST_P(Pretrained, ComesBackFromAFolderOfOurOwn) {
  const TempFolder folder;
  const AutoModel model = AutoModel::from_pretrained(kGoldens + GetParam().folder);
  save_pretrained(*model.module(), folder.at("saved"));
  const AutoModel again = AutoModel::from_pretrained(folder.at("saved"));
  EXPECT_EQ(again.config().architecture, model.config().architecture);
  EXPECT_EQ(models::hash_parameters(*again.module()), models::hash_parameters(*model.module()));
  EXPECT_THAT(again.report().surplus, IsEmpty());
  save_pretrained(*again.module(), folder.at("saved"));  // over the old one
}

INSTANTIATE_TEST_SUITE_P(Folders, Pretrained,
                         testing::Values(Case{"bert", "bert"}, Case{"bert_mlm", "bert_mlm"},
                                         Case{"bert_old", "bert_mlm"},
                                         Case{"bert_classify", "bert_classify"},
                                         Case{"gpt2", "gpt2"}, Case{"gpt2_hub", "gpt2"},
                                         Case{"mytransformer", "mytransformer"},
                                         Case{"mytransformer_plain", "mytransformer_plain"}));

// --- names
// -----------------------------------------------------------------------------------------

TEST(AutoModel, ListsWhatItDidNotUse) {
  const AutoModel old = AutoModel::from_pretrained(kGoldens + "bert_old");
  EXPECT_THAT(old.report().surplus,
              ElementsAre("cls.seq_relationship.bias", "cls.seq_relationship.weight",
                          "bert.pooler.dense.bias", "bert.pooler.dense.weight"));
  EXPECT_THAT(
      old.report().ignored,
      testing::UnorderedElementsAre("bert.embeddings.position_ids", "cls.predictions.decoder.bias",
                                    "cls.predictions.decoder.weight"));
  const AutoModel hub = AutoModel::from_pretrained(kGoldens + "gpt2_hub");
  EXPECT_THAT(hub.report().ignored,
              testing::UnorderedElementsAre("h.0.attn.bias", "h.0.attn.masked_bias",
                                            "h.1.attn.bias", "h.1.attn.masked_bias"));
  EXPECT_THAT(hub.report().surplus, IsEmpty());
}

TEST(AutoModel, DrawsAMissingHeadFromTheSeed) {
  const auto load = [](uint64_t seed) {
    return AutoModel::from_pretrained(
        kGoldens + "bert_mlm",
        {.architecture = "BertForSequenceClassification", .num_labels = 5, .seed = seed});
  };
  const AutoModel model = load(7);
  EXPECT_THAT(model.report().missing,
              testing::UnorderedElementsAre("bert.pooler.dense.weight", "bert.pooler.dense.bias",
                                            "classifier.weight", "classifier.bias"));
  const auto head = model.as<BertForSequenceClassification>()->named_parameters();
  EXPECT_EQ(head["classifier.weight"].sizes(), (at::IntArrayRef{5, 16}));
  EXPECT_GT(head["classifier.weight"].std().item<double>(), 0.01);
  EXPECT_EQ(models::hash_parameters(*load(7).module()), models::hash_parameters(*model.module()));
  EXPECT_NE(models::hash_parameters(*load(8).module()), models::hash_parameters(*model.module()));
}

TEST(AutoModel, DrawsAHeadAnewForAnotherNumberOfLabels) {
  const AutoModel model = AutoModel::from_pretrained(kGoldens + "bert_classify", {.num_labels = 4});
  EXPECT_THAT(model.report().missing, ElementsAre("classifier.weight", "classifier.bias"));
  EXPECT_THAT(model.report().surplus, ElementsAre("classifier.weight", "classifier.bias"));
  EXPECT_EQ(std::get<BertOptions>(model.config().options).num_labels, 4);
}

TEST(AutoModel, TakesEitherNameOfTiedWeights) {
  const AutoModel model = AutoModel::from_pretrained(kGoldens + "gpt2");
  std::vector<NamedTensor> state = state_of(*model.module());
  ASSERT_EQ(state[0].name, "transformer.wte.weight");
  state[0].name = "lm_head.weight";
  const TempFolder folder;
  folder.file("config.json", config_json(model.config()));
  save_weights(folder.at("model.safetensors"), state);
  const AutoModel again = AutoModel::from_pretrained(folder.path());
  EXPECT_EQ(models::hash_parameters(*again.module()), models::hash_parameters(*model.module()));
}

TEST(AutoModel, LosesThePrefixOfDataParallel) {
  const AutoModel model = AutoModel::from_pretrained(kGoldens + "gpt2");
  std::vector<NamedTensor> state = state_of(*model.module());
  for (NamedTensor& named : state) {
    named.name = "module." + named.name;
  }
  const TempFolder folder;
  save_weights(folder.at("weights.pth"), state);
  const AutoModel again =
      AutoModel::from_pretrained(folder.at("weights.pth"), {.config = kGoldens + "gpt2"});
  EXPECT_EQ(models::hash_parameters(*again.module()), models::hash_parameters(*model.module()));
}

TEST(AutoModel, ConvertsHalfPrecision) {
  const AutoModel model = AutoModel::from_pretrained(kGoldens + "gpt2");
  std::vector<NamedTensor> state = state_of(*model.module());
  for (NamedTensor& named : state) {
    named.tensor = named.tensor.detach().to(at::kHalf);
  }
  const TempFolder folder;
  folder.file("config.json", config_json(model.config()));
  save_weights(folder.at("model.safetensors"), state);
  const AutoModel again = AutoModel::from_pretrained(folder.path());
  const at::Tensor weight = again.module()->named_parameters()["transformer.wte.weight"];
  EXPECT_EQ(weight.scalar_type(), at::kFloat);
  EXPECT_TRUE(weight.equal(state[0].tensor.to(at::kFloat)));
}

// --- torchvision's files
// ---------------------------------------------------------------------------

TEST(AutoModel, KnowsAResNetByItsTensors) {
  const TempFolder folder;
  for (const bool bottleneck : {false, true}) {
    const ResNet model(ResNetOptions{
        .blocks = {1, 2, 1, 1}, .bottleneck = bottleneck, .width = 4, .num_classes = 5});
    const std::string path = folder.at("resnet.pth");
    save_state(*model, path);
    const AutoModel again = AutoModel::from_pretrained(path);
    EXPECT_EQ(models::hash_parameters(*again.module()), models::hash_parameters(*model));
    const auto options = std::get<ResNetOptions>(again.config().options);
    EXPECT_EQ(options.blocks, (std::vector<int64_t>{1, 2, 1, 1}));
    EXPECT_EQ(options.bottleneck, bottleneck);
    EXPECT_FALSE(again.module()->is_training());
  }
}

TEST(AutoModel, OldResNetsCountedNoBatches) {
  const ResNet model(ResNetOptions{.blocks = {1, 1, 1, 1}, .width = 4, .num_classes = 5});
  std::vector<NamedTensor> state = state_of(*model);
  std::erase_if(
      state, [](const NamedTensor& named) { return named.name.ends_with("num_batches_tracked"); });
  const TempFolder folder;
  save_weights(folder.at("resnet.safetensors"), state);
  const AutoModel again = AutoModel::from_pretrained(folder.at("resnet.safetensors"));
  EXPECT_EQ(models::hash_parameters(*again.module()), models::hash_parameters(*model));
  EXPECT_THAT(again.report().missing, IsEmpty());
}

// --- what is wrong
// ---------------------------------------------------------------------------------

TEST(AutoModel, RefusesABodyThatIsNotThere) {
  const AutoModelOptions options{.config = "bert-base-uncased"};
  EXPECT_THAT([&] { AutoModel::from_pretrained(kGoldens + "gpt2", options); },
              ThrowsMessage<FormatError>(
                  AllOf(HasSubstr("/goldens/gpt2 lacks 197 of the weights of a BertForMaskedLM: "
                                  "bert.embeddings.word_embeddings.weight"),
                        HasSubstr("and 191 more; not used: transformer."))));
}

TEST(AutoModel, RefusesAnotherShape) {
  ModelConfig config = AutoModel::from_pretrained(kGoldens + "gpt2").config();
  std::get<GPT2Options>(config.options).vocab_size = 98;
  const TempFolder folder;
  folder.file("config.json", config_json(config));
  EXPECT_THAT(
      refusal([&] { AutoModel::from_pretrained(kGoldens + "gpt2", {.config = folder.path()}); }),
      AllOf(HasSubstr("wte.weight"), HasSubstr("[97, 16]"), HasSubstr("[98, 16]")));
}

TEST(AutoModel, SaysWhichConfigurationsThereAre) {
  const auto refused = [](const std::string& location, const AutoModelOptions& options) {
    return refusal([&] { AutoModel::from_pretrained(kGoldens + location, options); });
  };
  EXPECT_THAT(refused("gpt2", {.config = "gpt3"}),
              AllOf(HasSubstr("nor a built-in configuration"), HasSubstr("did you mean gpt2?")));
  EXPECT_THAT(refused("bert_mlm/model.safetensors", {}),
              AllOf(HasSubstr("has no config.json"), HasSubstr("bert-base-uncased")));
  EXPECT_THAT(refused("gpt2", {.num_labels = 2}),
              HasSubstr("num_labels is 2, and a GPT2LMHeadModel classifies nothing"));
  EXPECT_THAT(refused("bert", {.num_labels = -2}), HasSubstr("num_labels is -2, it must be in"));
  EXPECT_THAT(refused("bert", {.architecture = "GPT2"}), HasSubstr("the architecture is \"GPT2\""));
}

TEST(AutoModel, IsOnlyWhatItIs) {
  const AutoModel model = AutoModel::from_pretrained(kGoldens + "gpt2");
  EXPECT_NO_THROW(model.as<GPT2>());
  EXPECT_EQ(refusal([&] { model.as<Bert>(); }),
            "the model is a GPT2LMHeadModel, not what as<>() asks for; see "
            "AutoModelOptions::architecture");
}

TEST(SavePretrained, SaysWhereItCannotWrite) {
  const TempFolder folder;
  const std::string file = folder.file("file", "");
  const MyTransformer model(
      MyTransformerOptions{.vocab_size = 9, .hidden_size = 8, .num_layers = 1});
  EXPECT_THAT([&] { save_pretrained(*model, file + "/saved"); },
              ThrowsMessage<IoError>(HasSubstr("cannot make the folder")));
  EXPECT_THAT(refusal([&] { save_state(*model, folder.at("model.onnx")); }),
              HasSubstr("must end in .safetensors, .pth, .pt or .bin"));
}

}  // namespace
}  // namespace lockstep::test
