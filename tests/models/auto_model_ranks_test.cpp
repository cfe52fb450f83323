#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <lockstep/models/auto_model.h>
#include <lockstep/models/gpt2.h>

#include "models/golden.h"
#include "models/parameter_hash.h"
#include "support/fleet.h"

namespace lockstep::test {
namespace {

using testing_support::run_ranks;

TEST(AutoModelRanks, EveryRankHoldsTheSameModel) {
  for (const int world : {1, 2, 3}) {
    run_ranks(world, [](Group& group) {
      for (const LoadMode mode : {LoadMode::Auto, LoadMode::Each}) {
        const AutoModel model = AutoModel::from_pretrained(
            kGoldens + "bert_mlm", group,
            {.architecture = "BertForSequenceClassification", .load = {.mode = mode}});
        const auto alone = AutoModel::from_pretrained(
            kGoldens + "bert_mlm", {.architecture = "BertForSequenceClassification"});
        EXPECT_EQ(models::hash_parameters(*model.module()),
                  models::hash_parameters(*alone.module()));
      }
    });
  }
}

TEST(AutoModelRanks, WhatIsWrongIsWrongOnAll) {
  run_ranks(3, [](Group& group) {
    EXPECT_THROW(AutoModel::from_pretrained("no/such/folder", group), Error);
    EXPECT_THROW(AutoModel::from_pretrained(kGoldens + "gpt2", group, {.config = "gpt2"}),
                 FormatError);
    const AutoModel model = AutoModel::from_pretrained(kGoldens + "gpt2", group);
    EXPECT_NO_THROW(model.as<GPT2>());  // the group is as good as new
  });
}

}  // namespace
}  // namespace lockstep::test
