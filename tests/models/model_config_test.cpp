#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>
#include <lockstep/models/model_config.h>

#include "support/refusal.h"

namespace lockstep::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const char* const kBert = R"({
  "architectures": ["BertForMaskedLM"], "model_type": "bert", "hidden_act": "gelu",
  "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37,
  "max_position_embeddings": 24, "vocab_size": 97, "layer_norm_eps": 1e-7,
  "gradient_checkpointing": false})";
const char* const kGpt2 = R"({
  "model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 24,
  "vocab_size": 97, "n_inner": null, "activation_function": "gelu_new"})";

// The configuration with `patch` merged into it: null removes a field.
std::string with(const char* json, const char* patch) {
  auto patched = nlohmann::json::parse(json);
  patched.merge_patch(nlohmann::json::parse(patch));
  return patched.dump();
}

std::string refusal_of(const std::string& json) {
  return refusal([&] { parse_config({.json = json}); });
}

TEST(ModelConfig, ReadsBert) {
  const ModelConfig config = parse_config({.json = kBert});
  EXPECT_EQ(config.architecture, "BertForMaskedLM");
  const auto& options = std::get<BertOptions>(config.options);
  EXPECT_EQ(options.hidden_size, 16);
  EXPECT_EQ(options.ffn_size, 37);
  EXPECT_EQ(options.layer_norm_eps, 1e-7);
  EXPECT_EQ(options.num_token_types, 2);
  EXPECT_EQ(options.pad_token, 0);
  EXPECT_EQ(options.num_labels, 2);
}

TEST(ModelConfig, CountsLabelsAndKnowsNoPadding) {
  const std::string json = R"({"model_type": "bert", "hidden_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 37, "max_position_embeddings": 24,
    "vocab_size": 97, "pad_token_id": null, "id2label": {"0": "a", "1": "b", "2": "c"}})";
  const auto options = std::get<BertOptions>(parse_config({.json = json}).options);
  EXPECT_EQ(options.num_labels, 3);
  EXPECT_EQ(options.pad_token, -1);
}

TEST(ModelConfig, ReadsGpt2) {
  const ModelConfig config = parse_config({.json = kGpt2});
  EXPECT_EQ(config.architecture, "GPT2LMHeadModel") << "the one there is";
  const auto& options = std::get<GPT2Options>(config.options);
  EXPECT_EQ(options.ffn_size, 64) << "4 times the hidden size where n_inner is null";
  EXPECT_EQ(options.activation, Activation::GeluTanh);
}

TEST(ModelConfig, TheCallerMayAskForAnotherClass) {
  const auto ask = [](const char* json, const char* architecture) {
    return parse_config({.json = json, .architecture = architecture}).architecture;
  };
  EXPECT_EQ(ask(kBert, "BertForSequenceClassification"), "BertForSequenceClassification");
  EXPECT_EQ(ask(kBert, "BertForPreTraining"), "BertForMaskedLM");
  EXPECT_EQ(ask(kGpt2, "GPT2Model"), "GPT2LMHeadModel");
  EXPECT_THAT(refusal([&] { ask(kBert, "BertForMaskedLm"); }),
              HasSubstr("did you mean BertForMaskedLM?"));
}

TEST(ModelConfig, WritesWhatItReads) {
  for (const std::string& name : builtin_config_names()) {
    const ModelConfig config = builtin_config(name);
    const std::string json = config_json(config);
    const ModelConfig again = parse_config({.json = json});
    EXPECT_EQ(again.architecture, config.architecture);
    EXPECT_EQ(config_json(again), json) << name;
  }
}

TEST(ModelConfig, RefusesWhatItCannotCompute) {
  const auto refused = [](const char* json, const char* patch) {
    return refusal_of(with(json, patch));
  };
  EXPECT_EQ(refused(kBert, R"({"model_type": "bret"})"),
            "config.json: model_type is \"bret\"; lockstep knows mytransformer, gpt2, bert, "
            "torchvision_resnet; did you mean bert?");
  EXPECT_EQ(refused(kBert, R"({"hidden_act": "gleu"})"),
            "config.json: hidden_act is \"gleu\"; lockstep knows gelu, gelu_new, "
            "gelu_pytorch_tanh, relu; did you mean gelu?");
  EXPECT_EQ(refused(kBert, R"({"hidden_size": null, "hiddensize": 16})"),
            "config.json: the field hidden_size is missing; did you mean hiddensize?");
  EXPECT_EQ(refused(kBert, R"({"hidden_size": "16"})"),
            "config.json: hidden_size is \"16\", it must be a whole number");
  EXPECT_EQ(refused(kBert, R"({"hidden_size": 18})"),
            "config.json: the model's hidden_size 18 is not a multiple of its 4 heads");
  EXPECT_EQ(refused(kBert, R"({"vocab_size": 0})"),
            "config.json: the model's vocab_size is 0, it must be in [1, 16777216]");
  EXPECT_EQ(refused(kBert, R"({"pad_token_id": 97})"),
            "config.json: the model's pad_token is 97, it must be in [-1, 96]");
  EXPECT_EQ(refused(kBert, R"({"hidden_dropout_prob": 1})"),
            "config.json: the model's hidden_dropout is 1, it must be in [0, 1)");
  EXPECT_EQ(refused(kBert, R"({"layer_norm_eps": 0})"),
            "config.json: the model's layer_norm_eps is 0, it must be in (0, 1)");
  EXPECT_EQ(refused(kBert, R"({"tie_word_embeddings": false})"),
            "config.json: tie_word_embeddings is false; lockstep computes only true");
  EXPECT_EQ(refused(kBert, R"({"position_embedding_type": "relative_key"})"),
            "config.json: position_embedding_type is \"relative_key\"; lockstep computes only "
            "\"absolute\"");
  EXPECT_THAT(refused(kBert, R"({"architectures": ["BertForQuestionAnswering"]})"),
              HasSubstr("lockstep has BertModel, BertForMaskedLM, BertForSequenceClassification"));
  EXPECT_THAT(refused(kBert, R"({"architectures": []})"), HasSubstr("must be a list of names"));
  EXPECT_THAT(refused(kGpt2, R"({"scale_attn_by_inverse_layer_idx": true})"),
              HasSubstr("computes only false"));
}

TEST(ModelConfig, BelievesNoSize) {
  EXPECT_THAT(refusal_of(with(kGpt2, R"({"n_embd": 9223372036854775807})")),
              HasSubstr("must be in"));
  EXPECT_THAT(refusal_of(with(kGpt2, R"({"n_embd": 18446744073709551615})")),
              HasSubstr("must be a whole number"));
  EXPECT_THAT(refusal_of(with(kGpt2, R"({"n_embd": 4194304})")), HasSubstr("the limit is 1e+11"));
  EXPECT_THAT(refusal_of(R"({"model_type": "torchvision_resnet", "blocks": [1, 2, 3]})"),
              HasSubstr("a ResNet has 4 stages"));
  EXPECT_THAT(refusal_of(R"({"model_type": "torchvision_resnet", "blocks": [1, 2, 3, 1e3]})"),
              HasSubstr("a list of whole numbers"));
}

TEST(ModelConfig, RefusesWhatIsNoJsonObject) {
  for (const char* text : {"", "[]", "{", "3", "{\"model_type\": \"bert\"} x", "\xff\xfe"}) {
    EXPECT_THROW(parse_config({.json = text}), FormatError) << text;
  }
}

TEST(ModelConfig, SuggestsABuiltInName) {
  EXPECT_THAT(refusal([] { builtin_config("gpt2-larg"); }),
              AllOf(HasSubstr("resnet152"), HasSubstr("did you mean gpt2-large?")));
}

}  // namespace
}  // namespace lockstep::test
