// An unmodified Python DDP script under `lockstep run`. LOCKSTEP_TEST_PYTHON names an interpreter
// that has torch, if python3 has it not.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/env.h"
#include "support/job.h"
#include "support/nodes.h"
#include "support/paths.h"
#include "support/service.h"

namespace lockstep::test {
namespace {

using ::testing::HasSubstr;

const std::string kScript = testing_support::in_tree("tests/launch/job/python_ddp.py");

std::string python() {
  return base::Env().text("LOCKSTEP_TEST_PYTHON").value_or("python3");
}

// Why Python's torch cannot be had here, if it cannot; asked once.
std::optional<std::string> torch_refusal() {
  static const auto refusal = []() -> std::optional<std::string> {
    const base::Output output =
        base::run_process({.argv = {"sh", "-c", "exec \"$0\" -c 'import torch'", python()}},
                          base::Deadline::after(kPatience));
    if (output.status.ok()) {
      return std::nullopt;
    }
    return fmt::format("{} has no torch: {}", python(),
                       output.err.empty() ? output.status.text() : lines(output.err).back());
  }();
  return refusal;
}

void expect_equal_parameters(const std::string& out, int world) {
  for (int rank = 0; rank < world; ++rank) {
    EXPECT_THAT(out,
                HasSubstr(fmt::format("rank {} of {} has the parameters of all", rank, world)));
  }
}

TEST(PythonDdp, RunsOnOneNode) {
  LOCKSTEP_NEEDS("python-torch", torch_refusal());
  Job job({"--nproc-per-node=2", kScript}, {.env = {{"PYTHON_EXEC", python()}}});
  EXPECT_EQ(job.wait().shell_code(), 0) << job.err();
  expect_equal_parameters(job.out(), 2);
}

TEST(PythonDdp, RunsOnTwoNodes) {
  LOCKSTEP_NEEDS("python-torch", torch_refusal());
  LOCKSTEP_NEEDS("namespaces", nodes_refusal());
  TestNodes nodes(2);
  std::vector<std::unique_ptr<Job>> jobs;
  for (int node = 0; node < nodes.size(); ++node) {
    jobs.push_back(std::make_unique<Job>(
        std::vector<std::string>{"--nnodes=2", "--node_rank=" + std::to_string(node),
                                 "--master_addr=node0", "--master_port=29500", "--nproc_per_node=2",
                                 kScript},
        JobPlace{
            .env = {{"PYTHON_EXEC", python()},
                    {"LOCKSTEP_JOB_SECRET", "0123456789abcdef0123456789abcdef"}},
            .inside = [&nodes, node](base::ProcessOptions o) { return nodes.inside(node, o); }}));
  }
  for (const auto& job : jobs) {
    EXPECT_EQ(job->wait().shell_code(), 0) << job->err();
  }
  expect_equal_parameters(jobs[0]->out() + jobs[1]->out(), 4);
}

}  // namespace
}  // namespace lockstep::test
