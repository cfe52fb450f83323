#include "train/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::Not;

train::RunReport report_of(std::vector<uint64_t> hashes) {
  train::RunReport report{.recipe = "cats",
                          .recipe_path = "r.toml",
                          .program = "bin/lockstep",
                          .samples = "pictures",
                          .num_parameters = 44'000};
  report.result.steps = 30;
  report.result.epochs = 3;
  report.result.last = {
      .step = 30, .num_steps = 30, .epoch = 2, .loss = 0.25, .train_accuracy = 0.97};
  report.result.evaluation = Evaluation{.loss = 0.1, .num_counted = 400, .num_correct = 394};
  report.result.seconds = 12.5;
  for (size_t rank = 0; rank < hashes.size(); ++rank) {
    report.nodes.push_back(static_cast<int64_t>(rank / 2));
  }
  report.result.parameter_hashes = std::move(hashes);
  return report;
}

TEST(TrainReport, SaysWhoARankIs) {
  EXPECT_EQ(train::start_line({.rank = 3,
                               .num_ranks = 8,
                               .node = 1,
                               .pid = 42,
                               .rank_samples = 50,
                               .num_samples = 400,
                               .samples = "pictures",
                               .threads = 2}),
            "rank 3 of 8 on node 1, pid 42: trains on 50 of 400 pictures per epoch, 2 threads");
}

TEST(TrainReport, AStepIsOneLine) {
  StepReport report{.step = 40,
                    .num_steps = 320,
                    .epoch = 3,
                    .loss = 0.5,
                    .train_accuracy = 0.75,
                    .lr = 0.003,
                    .samples_per_s = 812.4,
                    .seconds = 3.14};
  report.evaluation = Evaluation{.num_counted = 800, .num_correct = 570};
  EXPECT_EQ(train::step_line(report, "pictures"),
            "step   40/320  epoch  4  loss 0.5000  training  75.0 %  held out  71.2 %  lr 3.0e-03  "
            "  812 pictures/s    3.1 s");
  report.train_accuracy = -1;
  report.evaluation = Evaluation{.loss = 2.5};
  report.num_bad_steps = 1;
  EXPECT_EQ(train::step_line(report, "sequences"),
            "step   40/320  epoch  4  loss 0.5000  held out 2.5000  lr 3.0e-03    812 sequences/s  "
            "  3.1 s  1 bad step left out");
}

TEST(TrainReport, ASaveIsOneLineWhetherItWentWellOrNot) {
  EXPECT_EQ(train::save_line({.step = 5,
                              .committed = true,
                              .path = "runs/step-00000005",
                              .bytes = 2'500'000,
                              .seconds = 0.25}),
            "step    5  checkpoint runs/step-00000005 (2.5 MB, 0.25 s)");
  EXPECT_EQ(train::save_line({.step = 5, .error = "no space"}),
            "step    5  no checkpoint: no space");
}

TEST(TrainReport, EqualHashesAreTheSameBits) {
  const train::RunReport report = report_of({0xab, 0xab, 0xab, 0xab});
  EXPECT_TRUE(report.result.same_bits());
  EXPECT_EQ(report.num_nodes(), 2);
  const std::string text = train::result_text(report);
  EXPECT_THAT(text, HasSubstr("held-out accuracy 98.5 %: 394 of 400 pictures"));
  EXPECT_THAT(text, HasSubstr("rank 3   node 1   00000000000000ab\n"));
  EXPECT_THAT(text, HasSubstr("all 4 ranks hold the same bits"));
  EXPECT_THAT(text, HasSubstr("4 ranks on 2 nodes, 30 steps in 3 epochs, 12.5 s"));
  EXPECT_THAT(text, HasSubstr("bin/lockstep explain average"));
  EXPECT_THAT(text, HasSubstr("-- bin/lockstep train r.toml --set "));
}

TEST(TrainReport, OneDifferentHashIsSaid) {
  const train::RunReport report = report_of({0xab, 0xab, 0xac});
  EXPECT_FALSE(report.result.same_bits());
  EXPECT_THAT(train::result_text(report), HasSubstr("the ranks hold different models"));
  EXPECT_THAT(train::result_json(report), HasSubstr("\"same_bits\":false"));
}

TEST(TrainReport, OneRankIsComparedWithNobody) {
  const std::string text = train::result_text(report_of({1}));
  EXPECT_THAT(text, HasSubstr("one rank: nothing to compare"));
  EXPECT_THAT(text, HasSubstr("1 rank on 1 node, 30 steps in 3 epochs"));
  EXPECT_THAT(text, Not(HasSubstr("same bits")));
}

TEST(TrainReport, ALanguageModelHasAPerplexityAndAStopIsSaid) {
  train::RunReport report = report_of({1});
  report.recipe = "gpt2";
  report.result.evaluation = Evaluation{.loss = 1, .num_counted = 1270};
  report.result.end = TrainEnd::Asked;
  const std::string text = train::result_text(report);
  EXPECT_THAT(text, HasSubstr("held-out loss 1.0000, perplexity 2.72, over 1270 tokens"));
  EXPECT_THAT(text, HasSubstr("start it again to go on"));
  EXPECT_THAT(text, Not(HasSubstr("explain average")));
}

TEST(TrainReport, JsonIsOneLineThatAProgramCanRead) {
  const std::string json = train::result_json(report_of({0xab, 0xab}));
  EXPECT_THAT(json, Not(HasSubstr("\n")));
  EXPECT_THAT(json, HasSubstr("\"ranks\":2,\"nodes\":1,\"steps\":30,\"epochs\":3,"));
  EXPECT_THAT(json, HasSubstr("\"held_out_pictures\":400"));
  EXPECT_THAT(json, HasSubstr("\"parameter_hashes\":[\"00000000000000ab\",\"00000000000000ab\"]"));
  EXPECT_THAT(json, HasSubstr("\"same_bits\":true"));
  EXPECT_THAT(json, HasSubstr("\"threads\":"));
}

}  // namespace
}  // namespace lockstep
