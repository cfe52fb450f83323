#pragma once

// `lockstep doctor`: what this machine offers, what is wrong with it and how to fix it.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "doctor/gpu_facts.h"

namespace lockstep::doctor {

enum class CheckStatus { Ok, Note, Problem };

struct CheckResult {
  std::string name;
  CheckStatus status = CheckStatus::Ok;
  std::string found;
  std::string fix;  // empty if there is nothing to fix
};

struct DoctorOptions {
  std::string root;           // put before /proc, /sys and /dev; tests use a folder of their own
  std::string torch_program;  // REQUIRED: path of lockstep-torch
  std::string compiler = "g++";
  std::string cuda_compiler = "nvcc";
  std::string plugin_entry;  // how the GPU plug-in is known (device/plugin_api.h)
  int plugin_version = 0;
};

struct DoctorReport {
  std::vector<CheckResult> checks;  // in the order in which they are shown
  GpuFacts gpus;
};

// All checks.
DoctorReport examine(const DoctorOptions& options);

bool is_healthy(const std::vector<CheckResult>& checks);  // no Problem
std::string checks_table(const std::vector<CheckResult>& checks);
std::string checks_json(const std::vector<CheckResult>& checks);  // docs/concepts/doctor.md
std::string report_json(const DoctorReport& report);              // the same, and the GPUs

// The checks, one by one. Each is given what it judges.
CheckResult check_compiler(const std::string& program);
std::vector<CheckResult> check_torch(const std::string& program);  // libtorch and Gloo
CheckResult check_cuda_toolkit(const std::string& program);
CheckResult check_shared_memory(const std::string& folder);
CheckResult check_cores(const std::string& root, int num_affine);
CheckResult check_memory(const std::string& root);
CheckResult check_open_files(uint64_t soft_limit, uint64_t hard_limit);
CheckResult check_processes(uint64_t soft_limit);

struct HostName {
  std::string name;
  std::vector<std::string> addresses;  // what it resolves to, numeric
  std::string error;                   // why it does not, if it does not
};
HostName look_up_host_name();  // that of this host

CheckResult check_host_name(const std::string& name, const std::vector<std::string>& addresses,
                            const std::string& error);
CheckResult check_isolation(const std::optional<std::string>& refusal);

}  // namespace lockstep::doctor
