#pragma once

// Two emulated machines with Slurm between them, once per suite: starting it takes a second.

#include <memory>

#include <gtest/gtest.h>

#include "support/job.h"
#include "support/nodes.h"
#include "support/service.h"
#include "support/slurm_cluster.h"

namespace lockstep::test {

class SlurmTest : public ::testing::Test {
 protected:
  struct Parts {
    TempFolder folder;
    TestNodes nodes{2};
    SlurmCluster cluster{nodes, {.folder = folder.path()}};
  };

  static void TearDownTestSuite() { parts_.reset(); }

  void SetUp() override {
    LOCKSTEP_NEEDS("slurm", slurm_refusal());
    if (!parts_) {
      parts_ = std::make_unique<Parts>();
    }
  }

  static SlurmCluster& cluster() { return parts_->cluster; }
  static TestNodes& nodes() { return parts_->nodes; }
  static TempFolder& folder() { return parts_->folder; }
  static bool has_cluster() { return parts_ != nullptr; }

 private:
  static inline std::unique_ptr<Parts> parts_;
};

}  // namespace lockstep::test
