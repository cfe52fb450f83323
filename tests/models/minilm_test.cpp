// A real pretrained model of the BERT family: all-MiniLM-L6-v2, which tools/setup.sh --tests puts
// into .deps.
#include <filesystem>
#include <optional>

#include <gtest/gtest.h>

#include <lockstep/models/auto_model.h>
#include <lockstep/models/bert.h>

#include "models/golden.h"
#include "support/paths.h"
#include "support/processor.h"
#include "support/service.h"

namespace lockstep::test {
namespace {

const std::string kMiniLm = testing_support::in_tree(".deps/minilm-0.1.0");

std::optional<std::string> refusal_of_minilm() {
  if (std::filesystem::exists(kMiniLm + "/model.safetensors")) {
    return std::nullopt;
  }
  return "no " + kMiniLm + ": run tools/setup.sh --tests";
}

TEST(MiniLm, EmbedsSentencesAsTransformersDoes) {
  LOCKSTEP_NEEDS("minilm", refusal_of_minilm());
  const Golden golden = read_golden("minilm");
  const AutoModel pretrained = AutoModel::from_pretrained(kMiniLm);
  auto model = pretrained.as<Bert>();
  const BertInput input{.ids_BT = golden.at("input.ids"),
                        .attention_mask_BT = golden.at("input.attention_mask")};
  Tensors results;
  results["output.hidden"] = model->forward(input).hidden_BTE;
  const at::Tensor embedding_BE = results["output.embedding"] = model->embed(input);
  const at::Tensor probe_BE = fill("embedding", embedding_BE.sizes()).to(at::kFloat);
  results["loss"] = (embedding_BE * probe_BE).sum();
  results["loss"].backward();
  for (const auto& item : model->named_parameters()) {
    if (item.value().grad().defined()) {
      results["grad." + item.key()] = summary(item.key(), item.value().grad());
    }
  }
  // MKL rounds otherwise on processors of other makers than the golden's.
  expect_close(results, golden, testing_support::is_intel() ? 1e-5 : 1e-4);

  const at::Tensor alike = embedding_BE.matmul(embedding_BE.t());
  EXPECT_GT(alike[0][1].item<float>(), alike[0][2].item<float>() + 0.2)
      << "two sentences about ranks are closer than one about a cat";
}

}  // namespace
}  // namespace lockstep::test
