#include "train/run_device.h"

#include <algorithm>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/device/device.h>

#include "base/env.h"
#include "comm/agree.h"

namespace lockstep::train {
namespace {

// Of a checkpoint. Those without it are of the CPU, and so are those where it is something else: a
// program's own value, from before the trainer had one.
constexpr const char* kValue = "device";
constexpr const char* kVariable = "LOCKSTEP_DEVICE";

struct Gpu {
  at::Device device = at::kCPU;
  std::string problem;  // why there is none
};

Gpu own_gpu() {
  Gpu gpu;
  try {
    gpu.device = local_device();
  } catch (const UsageError& error) {
    gpu.problem = error.what();
    return gpu;
  }
  if (gpu.device.is_cpu()) {
    gpu.problem = cuda_problem();
  }
  return gpu;
}

// Whether the user has set a variable that makes the CPU an error, or that makes no sense.
bool is_insisted_on() {
  const std::string variable = base::Env().text(kVariable).value_or("auto");
  return variable != "auto" && variable != "cpu";
}

// Why some rank has no GPU, the same on every rank; first where that is an error.
struct Problem {
  std::string text;  // empty: every rank can have one
  bool is_error = false;
};

Problem problem_of_ranks(Group& group, const std::string& own) {
  constexpr char kError = '!', kPlain = ' ';
  const std::string marked = own.empty() ? "" : (is_insisted_on() ? kError : kPlain) + own;
  const std::vector<std::string> all = comm::gather_texts(group, marked);
  auto found = std::find_if(all.begin(), all.end(),
                            [&](const std::string& one) { return one.starts_with(kError); });
  if (found == all.end()) {
    found = std::find_if(all.begin(), all.end(), [](const auto& one) { return !one.empty(); });
  }
  if (found == all.end()) {
    return {};
  }
  const std::string rank = group.size() > 1 ? fmt::format("rank {}: ", found - all.begin()) : "";
  return {.text = rank + found->substr(1), .is_error = found->starts_with(kError)};
}

// No GPU is what most machines have; one that cannot be used, or not by all, deserves a word.
bool is_expected(const std::string& problem) {
  return problem.find("no NVIDIA driver") != std::string::npos ||
         base::Env().text(kVariable).value_or("") == "cpu";
}

void tell(const Group& group, const DeviceChoice& choice, at::Device device,
          const std::string& reason, bool is_warning = false) {
  const log::Level level = is_warning ? log::Level::Warn : log::Level::Info;
  if (group.rank() == 0 && log::enabled(level)) {
    log::write(level, "train",
               fmt::format("device: {}, as {} = \"{}\": {}", device.str(), choice.setting,
                           setting_name(choice.wanted), reason));
  }
}

[[noreturn]] void refuse_other_kind(const DeviceChoice& choice, TrainDevice now,
                                    const std::string& problem) {
  throw UsageError(
      "{} is of a run on {}, and this one is to go on on {}{}: its sums and random numbers would "
      "be others and so the result's bits. Go on there, or allow other bits: --allow-other-bits "
      "(checkpoint.allow_other_bits = true)",
      choice.checkpoint, *choice.before == TrainDevice::Cuda ? "a GPU (cuda)" : "the CPU",
      now == TrainDevice::Cuda ? "a GPU" : "the CPU",
      problem.empty() ? "" : fmt::format(" ({})", problem));
}

at::Device allowed(at::Device device, const DeviceChoice& choice, const std::string& problem) {
  const TrainDevice now = device.is_cpu() ? TrainDevice::Cpu : TrainDevice::Cuda;
  if (choice.before && *choice.before != now && !choice.allow_other_bits) {
    refuse_other_kind(choice, now, problem);
  }
  return device;
}

}  // namespace

const char* setting_name(TrainDevice device) {
  return kTrainDevices[static_cast<size_t>(device)].first;
}

TrainDevice parse_train_device(const std::string& name) {
  const auto found = std::find_if(kTrainDevices.begin(), kTrainDevices.end(),
                                  [&](const auto& entry) { return name == entry.first; });
  LOCKSTEP_CHECK(found != kTrainDevices.end(), "\"{}\" was not checked", name);
  return found->second;
}

std::string kind_of(at::Device device) {
  return setting_name(device.is_cpu() ? TrainDevice::Cpu : TrainDevice::Cuda);
}

DeviceChoice device_choice(const TrainerOptions& options,
                           const std::optional<Checkpoint>& checkpoint) {
  DeviceChoice choice{.wanted = options.device, .allow_other_bits = options.allow_other_bits};
  if (!checkpoint) {
    return choice;
  }
  const auto& values = checkpoint->info().values;
  const auto value = values.find(kValue);
  const bool is_cuda = value != values.end() && value->second == setting_name(TrainDevice::Cuda);
  choice.before = is_cuda ? TrainDevice::Cuda : TrainDevice::Cpu;
  choice.checkpoint = checkpoint->path();
  return choice;
}

at::Device choose_device(Group& group, const DeviceChoice& choice) {
  if (choice.wanted == TrainDevice::Cpu) {
    return allowed(at::kCPU, choice, "");
  }
  const bool is_auto = choice.wanted == TrainDevice::Auto;
  if (is_auto && choice.before == TrainDevice::Cpu) {
    tell(group, choice, at::kCPU, "the run began on it");
    return at::kCPU;
  }
  const Gpu own = own_gpu();
  const Problem problem = problem_of_ranks(group, own.problem);
  if (problem.text.empty()) {
    tell(group, choice, own.device, is_auto ? "every rank can have a GPU" : "so it was asked for");
    return allowed(own.device, choice, "");
  }
  if (!is_auto || problem.is_error) {
    throw UsageError("{} = \"{}\": {}", choice.setting, setting_name(choice.wanted), problem.text);
  }
  allowed(at::kCPU, choice, problem.text);
  tell(group, choice, at::kCPU, problem.text, !is_expected(problem.text));
  return at::kCPU;
}

std::optional<at::Device> gpu_of(at::Device device) {
  return device.is_cpu() ? std::nullopt : std::optional(device);
}

}  // namespace lockstep::train
