// `lockstep doctor` on a machine with a GPU.

#include <filesystem>

#include <ATen/Context.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/process/process.h"
#include "device/plugin.h"
#include "support/gpu.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::string found_of(const nlohmann::json& report, const std::string& name) {
  std::string found;
  for (const auto& check : report["checks"]) {
    if (check["name"] == name) {
      found += check["status"].get<std::string>() + ": " + check["found"].get<std::string>() + "\n";
    }
  }
  return found;
}

TEST(DoctorOnAGpu, SeesWhatProgramsSee) {
  LOCKSTEP_NEEDS_GPU();
  const fs::path program = fs::path(base::own_program()).parent_path() / "lockstep";
  const base::Output output = base::run_process({.argv = {program.string(), "doctor", "--json"}},
                                                base::Deadline::after(std::chrono::seconds(90)));
  fmt::print("{}{}", output.out, output.err);  // for whoever reads the log
  const auto report = nlohmann::json::parse(output.out);
  ASSERT_GE(report["gpus"].size(), static_cast<size_t>(at::getNumGPUs()));
  const auto& gpu = report["gpus"][0];
  EXPECT_THAT(gpu["name"].get<std::string>(), HasSubstr("NVIDIA"));
  EXPECT_THAT(gpu["uuid"].get<std::string>(), HasSubstr("GPU-"));
  EXPECT_GE(gpu["compute_capability"].get<double>(), 7.5);
  const auto total = gpu["memory_total_bytes"].get<uint64_t>();
  EXPECT_GE(total, uint64_t{4} << 30);
  EXPECT_LE(total, uint64_t{1} << 40);
  EXPECT_LE(gpu["memory_free_bytes"].get<uint64_t>(), total);
  size_t free_bytes = 0, total_bytes = 0;
  if (device::plugin() && device::plugin()->memory(0, &free_bytes, &total_bytes) == nullptr &&
      report["gpus"].size() == 1) {
    EXPECT_NEAR(static_cast<double>(total), static_cast<double>(total_bytes),
                0.05 * static_cast<double>(total))
        << "NVML and CUDA speak of one device";
  }
  EXPECT_THAT(found_of(report, "GPU driver"), HasSubstr("ok: driver "));
  EXPECT_THAT(found_of(report, "libtorch_cuda"), HasSubstr("ok: "));
  EXPECT_THAT(found_of(report, "cuDNN"), HasSubstr("ok: 9."));
  EXPECT_THAT(found_of(report, "NCCL"), HasSubstr("ok: 2."));
  if (device::plugin()) {
    EXPECT_THAT(found_of(report, "GPU plug-in"), HasSubstr("ok: "));
    EXPECT_THAT(found_of(report, "GPU plug-in"), HasSubstr("compute capability 8.0, 9.0"));
  }
}

}  // namespace
}  // namespace lockstep
