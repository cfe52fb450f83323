#pragma once

// Three emulated machines with an ssh server each, once per suite.

#include <memory>

#include <gtest/gtest.h>

#include "support/job.h"
#include "support/nodes.h"
#include "support/service.h"
#include "support/ssh_server.h"

namespace lockstep::test {

class SshTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!ssh_refusal()) {
      folder_ = std::make_unique<TempFolder>();
      nodes_ = std::make_unique<TestNodes>(3);
      servers_ = std::make_unique<SshServers>(*nodes_, folder_->path());
    }
  }
  static void TearDownTestSuite() {
    servers_.reset();
    nodes_.reset();
    folder_.reset();
  }
  void SetUp() override { LOCKSTEP_NEEDS("ssh", ssh_refusal()); }

  static inline std::unique_ptr<TempFolder> folder_;  // seen by all machines
  static inline std::unique_ptr<TestNodes> nodes_;
  static inline std::unique_ptr<SshServers> servers_;
};

}  // namespace lockstep::test
