// What one number of ranks saved, another loads, bit by bit.

#include <filesystem>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "checkpoint/checkpoint_state.h"
#include "formats/safetensors.h"
#include "support/fleet.h"
#include "support/refusal.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using test::load_newest;
using test::names_in;
using test::refusal;
using test::sample_state;
using test::save;
using test::TempFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_support::rank_argument;
using testing_support::run_ranks;

TEST(RoundTrip, AnyNumberOfRanksLoadsWhatAnyOtherSaved) {
  for (const int world : {1, 2, 4}) {
    const TempFolder folder;
    run_ranks(world,
              [](Group& group) {
                CheckpointWriter writer(rank_argument(), group);
                const SaveResult result = save(writer, 100);
                EXPECT_TRUE(result.committed) << result.error;
                EXPECT_EQ(result.path, rank_argument() + "/step-00000100");
                EXPECT_EQ(load_newest(rank_argument(), group), 100);
              },
              {.argument = folder.path()});
    EXPECT_THAT(names_in(folder.path()), ElementsAre("latest", "step-00000100"));
    EXPECT_EQ(names_in(folder.at("step-00000100")).size(), 1u + static_cast<size_t>(world));
    for (const int other : {1, 3}) {
      run_ranks(other, [](Group& group) { EXPECT_EQ(load_newest(rank_argument(), group), 100); },
                {.argument = folder.path()});
    }
    for (const char* name : {"step-00000100", "latest"}) {
      Group alone = make_single_group();
      EXPECT_EQ(load_newest(folder.at(name), alone), 100);
    }
  }
}

TEST(RoundTrip, EachRankWritesAnEvenShareAndEveryByteOnce) {
  const TempFolder folder;
  run_ranks(4,
            [](Group& group) {
              CheckpointWriter writer(rank_argument(), group);
              save(writer, 1);
            },
            {.argument = folder.path()});
  uint64_t state_bytes = 0;
  for (const NamedTensor& named : sample_state(1)) {
    state_bytes += named.tensor.nbytes();
  }
  uint64_t bytes = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const base::FileSource shard(
        folder.at(fmt::format("step-00000001/shard-{:05}-of-00004.safetensors", rank)));
    EXPECT_NEAR(static_cast<double>(shard.size()), static_cast<double>(state_bytes) / 4, 100e3);
    for (const formats::TensorInfo& tensor :
         formats::read_safetensors(shard).tensors) {  // as others read it
      bytes += tensor.size_bytes;
    }
  }
  EXPECT_EQ(bytes, state_bytes);
}

using Files = std::map<std::string, std::string>;

TEST(RoundTrip, AttachmentsComeBackOnAnyNumberOfRanks) {
  const TempFolder folder;
  run_ranks(2,
            [](Group& group) {
              CheckpointWriter writer(rank_argument(), group);
              CheckpointInfo info{.step = 5};
              if (group.rank() == 0) {  // rank 0's are written
                info.attachments = std::make_shared<const Files>(
                    Files{{"a.json", "{}"}, {"empty", ""}, {"big", std::string(70'001, '\xff')}});
              }
              writer.begin(info, sample_state(5));
              writer.wait();
              const SaveResult result = writer.take_results().at(0);
              EXPECT_TRUE(result.committed) << result.error;
              EXPECT_GT(result.bytes, 70'003u);
            },
            {.argument = folder.path()});
  EXPECT_THAT(names_in(folder.at("step-00000005")),
              ElementsAre("attached-a.json", "attached-big", "attached-empty", "manifest.json",
                          "shard-00000-of-00002.safetensors", "shard-00001-of-00002.safetensors"));
  for (const int world : {1, 3}) {
    run_ranks(world,
              [](Group& group) {
                const auto checkpoint = find_checkpoint(rank_argument(), group);
                ASSERT_TRUE(checkpoint);
                EXPECT_THAT(checkpoint->attachments(), ElementsAre("a.json", "big", "empty"));
                EXPECT_EQ(checkpoint->read_attachment("a.json", group), "{}");
                EXPECT_EQ(checkpoint->read_attachment("empty", group), "");
                EXPECT_EQ(checkpoint->read_attachment("big", group), std::string(70'001, '\xff'));
                EXPECT_THROW(checkpoint->read_attachment("b", group), UsageError);
              },
              {.argument = folder.path()});
  }
}

TEST(RoundTrip, ASecondSaveOfAStepHasAttachmentsOfItsOwn) {
  const TempFolder folder;
  Group alone = make_single_group();
  CheckpointWriter writer(folder.path(), alone);
  for (const char* text : {"first", "second"}) {
    const auto files = std::make_shared<const Files>(Files{{"a.txt", text}});
    writer.begin({.step = 1, .attachments = files}, sample_state(1));
    writer.wait();
    EXPECT_TRUE(writer.take_results().at(0).committed);
    EXPECT_EQ(find_checkpoint(folder.path(), alone)->read_attachment("a.txt", alone), text);
  }
  EXPECT_THAT(names_in(folder.at("step-00000001")),
              ElementsAre("attached-save-2-a.txt", "manifest.json",
                          "shard-00000-of-00001-save-2.safetensors"));
}

TEST(RoundTrip, AttachmentsThatCannotBeAreRefused) {
  const TempFolder folder;
  Group alone = make_single_group();
  CheckpointWriter writer(folder.path(), alone);
  for (const char* name : {"", "../a", "a/b", ".a"}) {
    const auto files = std::make_shared<const Files>(Files{{name, "x"}});
    EXPECT_THAT(refusal([&] { writer.begin({.step = 1, .attachments = files}, sample_state(1)); }),
                HasSubstr("cannot be the name of an attachment"));
  }
}

TEST(RoundTrip, ALoadThatCannotBeIsRefused) {
  const TempFolder folder;
  run_ranks(
      2,
      [](Group& group) {
        CheckpointWriter writer(rank_argument(), group);
        save(writer, 5);
        const auto checkpoint = find_checkpoint(rank_argument(), group);
        ASSERT_TRUE(checkpoint);
        EXPECT_EQ(checkpoint->find("scalar")->dtype, at::kLong);
        EXPECT_EQ(checkpoint->find("absent"), nullptr);
        EXPECT_EQ(checkpoint->tensors().size(), sample_state(5).size());
        const auto loads = [&](const std::string& name, const at::Tensor& tensor) {
          const std::vector<WeightTarget> targets{{name, tensor}};
          return refusal([&] { checkpoint->load(targets, group); });
        };
        EXPECT_THAT(loads("absent", at::zeros({1})), HasSubstr("no tensor \"absent\" among its"));
        EXPECT_THAT(loads("large.first", at::zeros({301, 1004})),
                    HasSubstr("is F32 [301, 1003], and the one to be filled is Float [301, 1004]"));
        EXPECT_THAT(loads("large.first", at::zeros({301, 1003}, at::kDouble)),
                    HasSubstr("the one to be filled is Double"));
        EXPECT_THAT(loads("scalar", at::Tensor()),
                    HasSubstr("only into a dense tensor of the CPU or a GPU"));
        group.barrier();
      },
      {.argument = folder.path()});
}

TEST(FindCheckpoint, NothingIsNoError) {
  const TempFolder folder;
  Group alone = make_single_group();
  EXPECT_EQ(load_newest(folder.path(), alone), -1);
  EXPECT_EQ(load_newest(folder.at("absent"), alone), -1);
  std::filesystem::create_directory(folder.at("step-00000001"));
  EXPECT_THROW(load_newest(folder.at("step-00000001"), alone), IoError);
}

}  // namespace
}  // namespace lockstep
