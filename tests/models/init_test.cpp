#include "models/init.h"

#include <cmath>

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <lockstep/models/auto_model.h>
#include <lockstep/models/bert.h>
#include <lockstep/models/gpt2.h>
#include <lockstep/models/my_transformer.h>

#include "models/parameter_hash.h"

namespace lockstep {
namespace {

MyTransformerOptions small() {
  return {.vocab_size = 97, .hidden_size = 64, .num_layers = 2, .num_heads = 4, .ffn_size = 100};
}

double deviation(const torch::nn::Module& model, const std::string& name) {
  return model.named_parameters()[name].std().item<double>();
}

TEST(Init, IsAFunctionOfTheSeed) {
  MyTransformerOptions options = small();
  torch::manual_seed(1);
  const uint64_t first = models::hash_parameters(*MyTransformer(options));
  torch::manual_seed(2);
  EXPECT_EQ(models::hash_parameters(*MyTransformer(options)), first);
  options.seed = 43;
  EXPECT_NE(models::hash_parameters(*MyTransformer(options)), first);
}

TEST(Init, ScalesWhatIsSummedUp) {
  const MyTransformer mine(small());
  EXPECT_NEAR(deviation(*mine, "layers.1.linear1.weight"), 0.02, 0.001);
  EXPECT_NEAR(deviation(*mine, "layers.1.linear2.weight"), 0.02 / 2, 0.001);
  EXPECT_NEAR(deviation(*mine, "layers.0.self_attn.out_proj.weight"), 0.02 / 2, 0.001);
  const GPT2 gpt2(GPT2Options{
      .vocab_size = 97, .hidden_size = 64, .num_layers = 8, .num_heads = 4, .ffn_size = 256});
  EXPECT_NEAR(deviation(*gpt2, "transformer.h.3.attn.c_attn.weight"), 0.02, 0.001);
  EXPECT_NEAR(deviation(*gpt2, "transformer.h.3.mlp.c_proj.weight"), 0.02 / 4, 0.001);
}

TEST(Init, GivesNormsOneBiasesZeroAndPaddingZero) {
  const BertForMaskedLM model(BertOptions{
      .vocab_size = 97, .hidden_size = 16, .num_layers = 1, .num_heads = 4, .pad_token = 3});
  const auto parameters = model->named_parameters();
  EXPECT_TRUE(parameters["bert.embeddings.LayerNorm.weight"].eq(1).all().item<bool>());
  EXPECT_TRUE(parameters["cls.predictions.bias"].eq(0).all().item<bool>());
  const at::Tensor words = parameters["bert.embeddings.word_embeddings.weight"];
  EXPECT_TRUE(words[3].eq(0).all().item<bool>());
  EXPECT_FALSE(words[0].eq(0).any().item<bool>());
}

TEST(Init, HeadsShareTheirBackbone) {
  const BertOptions options{
      .vocab_size = 97, .hidden_size = 16, .num_layers = 1, .num_heads = 4, .num_labels = 3};
  const BertForMaskedLM masked(options);
  const BertForSequenceClassification classifier(options);
  const std::string name = "bert.encoder.layer.0.output.dense.weight";
  EXPECT_TRUE(masked->named_parameters()[name].equal(classifier->named_parameters()[name]));
  EXPECT_TRUE(
      Bert(options)->named_parameters()[name.substr(5)].equal(masked->named_parameters()[name]));
}

TEST(Init, GivesEveryParameterAndBufferAValue) {
  const BertOptions bert{.vocab_size = 97, .hidden_size = 16, .num_layers = 1, .num_heads = 4};
  const ResNetOptions resnet{.blocks = {1, 1, 1, 1}, .width = 4, .num_classes = 5};
  for (const ModelConfig& config : std::initializer_list<ModelConfig>{
           {"MyTransformer", small()},
           {"GPT2LMHeadModel", GPT2Options{.hidden_size = 16, .num_layers = 1, .num_heads = 4}},
           {"BertModel", bert},
           {"BertForMaskedLM", bert},
           {"BertForSequenceClassification", bert},
           {"ResNet", resnet}}) {
    const AutoModel model = AutoModel::from_config(config);
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : model.module()->parameters()) {
      parameter.fill_(NAN);
    }
    models::initialise(*model.module(), 1);
    for (const auto& item : model.module()->named_parameters()) {
      EXPECT_FALSE(item.value().isnan().any().item<bool>())
          << config.architecture << " " << item.key();
    }
  }
}

struct Count {
  const char* name;
  int64_t num_parameters;
};

// The originals' counts; nothing is written into the memory, so that it costs none.
TEST(Models, HaveAsManyParametersAsTheOriginals) {
  for (const Count& count : std::initializer_list<Count>{{"all-MiniLM-L6-v2", 22'713'216},
                                                         {"bert-base-uncased", 109'514'298},
                                                         {"bert-large-uncased", 335'174'458},
                                                         {"gpt2", 124'439'808},
                                                         {"gpt2-medium", 354'823'168},
                                                         {"gpt2-large", 774'030'080},
                                                         {"gpt2-xl", 1'557'611'200},
                                                         {"mytransformer", 68'841'776},
                                                         {"resnet18", 11'689'512},
                                                         {"resnet34", 21'797'672},
                                                         {"resnet50", 25'557'032},
                                                         {"resnet101", 44'549'160},
                                                         {"resnet152", 60'192'808}}) {
    ModelConfig config = builtin_config(count.name);
    std::visit([](auto& options) { options.initialise = false; }, config.options);
    EXPECT_EQ(models::num_parameters(*AutoModel::from_config(config).module()),
              count.num_parameters)
        << count.name;
  }
}

}  // namespace
}  // namespace lockstep
