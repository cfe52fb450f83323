// Shapes: B batch, C colours, H W height and width, T tokens.
#include "bench/gpu/parity_models.h"

#include <ATen/Context.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>

#include <lockstep/models/bert.h>

#include "models/small_convnet.h"

namespace lockstep {
namespace {

constexpr int64_t kBatch = 8;
constexpr uint64_t kSeed = 42;

class Pictures : public BenchModel {
 public:
  Pictures() { register_module("net", net_); }

  at::Tensor forward(const at::Tensor& pictures_BCHW) override { return net_(pictures_BCHW); }
  BenchBatch make_batch(const at::Generator& generator) const override {
    return {.input = at::rand({kBatch, 3, 32, 32}, generator, at::kFloat),
            .target = at::randint(2, {kBatch}, generator, at::kLong)};
  }

 private:
  models::SmallConvnet net_{models::SmallConvnetOptions{.seed = kSeed}};
};

class Sentences : public BenchModel {
 public:
  Sentences() { register_module("bert", bert_); }

  at::Tensor forward(const at::Tensor& ids_BT) override {
    return bert_(BertInput{.ids_BT = ids_BT});
  }
  BenchBatch make_batch(const at::Generator& generator) const override {
    return {.input = at::randint(kNumWords, {kBatch, kLength}, generator, at::kLong),
            .target = at::randint(kNumLabels, {kBatch}, generator, at::kLong)};
  }

 private:
  static constexpr int64_t kNumWords = 3000;
  static constexpr int64_t kNumLabels = 4;
  static constexpr int64_t kLength = 64;

  BertForSequenceClassification bert_{BertOptions{.vocab_size = kNumWords,
                                                  .hidden_size = 256,
                                                  .num_layers = 4,
                                                  .num_heads = 8,
                                                  .ffn_size = 1024,
                                                  .max_positions = kLength,
                                                  .num_labels = kNumLabels,
                                                  .hidden_dropout = 0,
                                                  .attention_dropout = 0}};
};

}  // namespace

std::shared_ptr<BenchModel> make_parity_model(const std::string& name) {
  at::manual_seed(kSeed);  // for the layers that draw from libtorch's global generator
  if (name == "convnet") {
    return std::make_shared<Pictures>();
  }
  if (name == "bert") {
    return std::make_shared<Sentences>();
  }
  return make_bench_model(name == "mytransformer" ? "transformer" : name);
}

}  // namespace lockstep
