// Full-size models beside Python's. LOCKSTEP_TEST_PYTHON names an interpreter that has torch,
// transformers and torchvision, if python3 has them not.
#include <cstdlib>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/env.h"
#include "base/process/process.h"
#include "support/paths.h"
#include "support/service.h"

namespace lockstep::test {
namespace {

std::string python() {
  return base::Env().text("LOCKSTEP_TEST_PYTHON").value_or("python3");
}

std::optional<std::string> peer_refusal() {
  const base::Output output = base::run_process(
      {.argv = {"sh", "-c", "exec \"$0\" -c 'import safetensors, torchvision, transformers'",
                python()}},
      base::Deadline::after(std::chrono::seconds(120)));
  if (output.status.ok()) {
    return std::nullopt;
  }
  return fmt::format("{} has no transformers and torchvision", python());
}

TEST(ModelsParity, FullSizeModelsComputeWhatPythonComputes) {
  if (std::getenv("LOCKSTEP_LONG_TESTS") == nullptr) {
    GTEST_SKIP() << "takes minutes and gigabytes: set LOCKSTEP_LONG_TESTS=1";
  }
  LOCKSTEP_NEEDS("python-transformers", peer_refusal());
  const base::Output output = base::run_process(
      {.argv = {python(), testing_support::in_tree("tests/parity/models_parity.py"),
                testing_support::in_build("model_parity")}},
      base::Deadline::after(std::chrono::minutes(15)));
  EXPECT_TRUE(output.status.ok()) << output.out << output.err;
}

}  // namespace
}  // namespace lockstep::test
