// Weights on a real S3 server: read by share, and by way of a local copy.

#include <filesystem>
#include <sstream>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "support/fleet.h"
#include "support/s3_server.h"
#include "support/service.h"
#include "support/temp_folder.h"
#include "weights/weight_files.h"

namespace lockstep {
namespace {

using test::expect_loaded;
using test::sample_weights;
using test::targets_for;
using test::TempFolder;
using ::testing::HasSubstr;
using testing_support::rank_argument;

class RemoteWeights : public ::testing::Test {
 protected:
  void SetUp() override {
    LOCKSTEP_NEEDS("s3", test::s3_refusal());
    std::filesystem::create_directories(folder_.at("buckets/models/small"));
    test::write_torch_file(folder_.at("buckets/models/small/pytorch_model.bin"), sample_weights());
    server_ = std::make_unique<test::S3Server>(folder_.at("buckets"));
  }

  template <typename Body>
  void run(int world, Body body, const std::string& argument = "") {
    testing_support::RunOptions options{.argument = argument};
    for (const auto& [name, value] : server_->env()) {
      options.env.push_back(name + "=" + value);
    }
    testing_support::run_ranks(world, body, options);
  }

  const TempFolder folder_;
  std::unique_ptr<test::S3Server> server_;
};

TEST_F(RemoteWeights, EachRankFetchesItsShare) {
  run(3, [](Group& group) {
    Weights weights = Weights::open("s3://models/small", group);
    const auto targets = targets_for(sample_weights());
    const LoadReport report = load_weights(weights, targets, group);
    EXPECT_EQ(report.mode, LoadMode::Cooperative);
    EXPECT_TRUE(report.verified);
    EXPECT_LT(report.bytes_read, static_cast<uint64_t>(weights.file_bytes()) / 2);
    expect_loaded(targets, sample_weights());
    EXPECT_THROW(Weights::open("s3://models/absent/model.safetensors", group), IoError);
    EXPECT_THROW(Weights::open("s3://models/absent", group), UsageError);
    group.barrier();
  });
}

TEST_F(RemoteWeights, ACopyIsMadeOnceAndFoundAgain) {
  const auto body = [](Group& group) {
    Weights weights = Weights::open("s3://models/small", group, {.cache_dir = rank_argument()});
    EXPECT_EQ(weights.location(), "s3://models/small");
    const auto targets = targets_for(sample_weights());
    load_weights(weights, targets, group);
    expect_loaded(targets, sample_weights());
  };
  const std::string copy = folder_.at("cache/models/small/pytorch_model.bin");
  run(3, body, folder_.at("cache"));
  ASSERT_TRUE(std::filesystem::exists(copy));
  const auto made = std::filesystem::last_write_time(copy);
  run(2, body, folder_.at("cache"));
  EXPECT_EQ(std::filesystem::last_write_time(copy), made);
  size_t num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.at("cache/models/small"))) {
    num_files += entry.path().filename().string().ends_with(".lockstep-part") ? 100 : 1;
  }
  EXPECT_LE(num_files, 2u) << "the copy and its stamp";
}

}  // namespace
}  // namespace lockstep
