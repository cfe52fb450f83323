// Checkpoints on a real S3 server: the manifest commits.

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "checkpoint/checkpoint_state.h"
#include "checkpoint_files/owner.h"
#include "checkpoint_files/points.h"
#include "storage/storage.h"
#include "support/fleet.h"
#include "support/refusal.h"
#include "support/s3_server.h"
#include "support/service.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using checkpoint_files::SavePoint;
using test::load_newest;
using test::save;
using test::TempFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_support::die_now;

constexpr const char* kLocation = "s3://runs/cats";

class RemoteCheckpoints : public ::testing::Test {
 protected:
  void SetUp() override {
    LOCKSTEP_NEEDS("s3", test::s3_refusal());
    std::filesystem::create_directories(folder_.at("buckets/runs"));
    server_ = std::make_unique<test::S3Server>(folder_.at("buckets"));
  }

  template <typename Body>
  void run(int world, Body body, std::vector<int> dies = {}) {
    testing_support::RunOptions options{.dies = std::move(dies)};
    for (const auto& [name, value] : server_->env()) {
      options.env.push_back(name + "=" + value);
    }
    testing_support::run_ranks(world, body, options);
  }

  // Two ranks: the first save is whole, in the second rank 0 is killed.
  template <SavePoint point>
  void save_and_die_in_the_next_at() {
    run(2,
        [](Group& group) {
          CheckpointWriter writer(kLocation, group);
          EXPECT_TRUE(save(writer, 1).committed);
          group.barrier();
          checkpoint_files::save_observer = [](SavePoint passed) {
            if (passed == point) {
              die_now();
            }
          };
          EXPECT_FALSE(save(writer, 2).committed);
        },
        {0});
  }

  const TempFolder folder_;
  std::unique_ptr<test::S3Server> server_;
};

std::vector<std::string> objects() {
  std::vector<std::string> paths;
  for (const storage::ObjectInfo& object : storage::open_storage(kLocation)->list()) {
    if (object.path != checkpoint_files::kOwnerFile) {
      paths.push_back(object.path);
    }
  }
  return paths;
}

TEST_F(RemoteCheckpoints, KeepTheirAttachments) {
  run(2, [](Group& group) {
    using Files = std::map<std::string, std::string>;
    CheckpointWriter writer(kLocation, group);
    for (const char* text : {"first", "second"}) {
      const auto files = std::make_shared<const Files>(Files{{"a.txt", text}});
      writer.begin({.step = 1, .attachments = files}, test::sample_state(1));
      writer.wait();
      EXPECT_TRUE(writer.take_results().at(0).committed);
      EXPECT_EQ(find_checkpoint(kLocation, group)->read_attachment("a.txt", group), text);
    }
    group.barrier();
    if (group.rank() == 0) {
      EXPECT_THAT(objects(), ElementsAre("latest", "step-00000001/attached-save-2-a.txt",
                                         "step-00000001/manifest.json",
                                         "step-00000001/shard-00000-of-00002-save-2.safetensors",
                                         "step-00000001/shard-00001-of-00002-save-2.safetensors"));
    }
  });
}

TEST_F(RemoteCheckpoints, AreSavedFoundAndRetained) {
  run(2, [](Group& group) {
    EXPECT_EQ(load_newest(kLocation, group), -1);
    CheckpointWriter writer(kLocation, group, {.keep_last = 1});
    for (const int64_t step : {1, 2, 2}) {
      const SaveResult result = save(writer, step);
      EXPECT_TRUE(result.committed) << result.error;
      EXPECT_EQ(load_newest(kLocation, group), step);
    }
    group.barrier();
    if (group.rank() == 0) {
      EXPECT_THAT(objects(), ElementsAre("latest", "step-00000002/manifest.json",
                                         "step-00000002/shard-00000-of-00002-save-3.safetensors",
                                         "step-00000002/shard-00001-of-00002-save-3.safetensors"));
    }
    EXPECT_EQ(verify_checkpoints(kLocation).at(0).problem, "");
    group.barrier();
  });
}

TEST_F(RemoteCheckpoints, ASaveThatWasKilledIsNone) {
  save_and_die_in_the_next_at<SavePoint::ManifestWritten>();
  run(1, [](Group& group) {
    EXPECT_EQ(load_newest(kLocation, group), 1);
    CheckpointWriter writer(kLocation, group, {.keep_last = 1});
    EXPECT_TRUE(save(writer, 3).committed);
    EXPECT_THAT(objects(), ElementsAre("latest", "step-00000003/manifest.json",
                                       "step-00000003/shard-00000-of-00001-save-2.safetensors"));
  });
}

// Its manifest is there, and that is what counts; `latest` is the one before.
TEST_F(RemoteCheckpoints, ASaveThatWasKilledOnceItWasCommittedIsThere) {
  save_and_die_in_the_next_at<SavePoint::Renamed>();
  run(1, [](Group& group) { EXPECT_EQ(load_newest(kLocation, group), 2); });
}

void put(const std::string& path, const std::string& text) {
  const auto writer = storage::open_storage(kLocation)->create(path);
  writer->append(text);
  writer->commit();
}

TEST_F(RemoteCheckpoints, ObjectsOfOthersAreLeftAlone) {
  run(1, [](Group& group) {
    put("step-5000.pt", "mine");
    put("step-by-step-notes/README.md", "mine");
    put("step-by-step-notes/shard-00000-of-00001.safetensors", "mine");
    put("step-00000009/notes.txt", "mine");
    put("step-00000009/deep/manifest.json", "mine");
    put("step-00000009/shard-00000-of-00001-save-1.safetensors", "of a killed save");
    CheckpointWriter writer(kLocation, group, {.keep_last = 1});
    EXPECT_TRUE(save(writer, 1).committed);
    put("step-00000001/notes.txt", "mine");
    EXPECT_TRUE(save(writer, 1).committed);
    EXPECT_TRUE(save(writer, 2).committed);
    EXPECT_THAT(objects(),
                ElementsAre("latest", "step-00000001/notes.txt", "step-00000002/manifest.json",
                            "step-00000002/shard-00000-of-00001-save-3.safetensors",
                            "step-00000009/deep/manifest.json", "step-00000009/notes.txt",
                            "step-5000.pt", "step-by-step-notes/README.md",
                            "step-by-step-notes/shard-00000-of-00001.safetensors"));
    EXPECT_EQ(load_newest(kLocation, group), 2);
  });
}

TEST_F(RemoteCheckpoints, ASecondRunIsRefusedAndAKilledOneStandsInNobodysWay) {
  run(2,
      [](Group& group) {
        CheckpointWriter writer(kLocation, group);
        EXPECT_THAT(test::refusal([&] { CheckpointWriter(kLocation, group); }),
                    HasSubstr("s3://runs/cats is in use"));
        EXPECT_TRUE(save(writer, 1).committed);
        group.barrier();
        if (group.rank() == 0) {
          die_now();
        }
      },
      {0});
  run(1, [](Group& group) {
    CheckpointWriter writer(kLocation, group);
    EXPECT_TRUE(save(writer, 2).committed);
  });
}

TEST_F(RemoteCheckpoints, AKeyThatOpensNothingIsFoundBeforeTheFirstSave) {
  run(1, [](Group& group) {
    ::setenv("AWS_SECRET_ACCESS_KEY", "another", 1);
    EXPECT_THROW(CheckpointWriter(kLocation, group), IoError);
  });
}

}  // namespace
}  // namespace lockstep
