#pragma once

// Which device a run computes on.

#include <array>
#include <optional>
#include <string>
#include <utility>

#include <c10/core/Device.h>

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/train/trainer.h>

namespace lockstep::train {

inline constexpr std::array<std::pair<const char*, TrainDevice>, 3> kTrainDevices{
    {{"auto", TrainDevice::Auto}, {"cpu", TrainDevice::Cpu}, {"cuda", TrainDevice::Cuda}}};
const char* setting_name(TrainDevice device);
TrainDevice parse_train_device(const std::string& name);  // one of these

struct DeviceChoice {
  TrainDevice wanted = TrainDevice::Auto;
  std::string setting = "train.device";  // what the user calls it
  // The kind that the run began on, and the checkpoint that says so; nothing for a new run.
  std::optional<TrainDevice> before = {};
  std::string checkpoint = {};
  bool allow_other_bits = false;
};

// The choice of a run, from the options and the checkpoint that it goes on from.
DeviceChoice device_choice(const TrainerOptions& options,
                           const std::optional<Checkpoint>& checkpoint);

// Collective; logs what it took and why. All ranks come to the same kind. Throws UsageError, on
// every rank, if a GPU is wanted and some rank cannot have one, or if the run began on another kind
// of device and other bits are not allowed.
at::Device choose_device(Group& group, const DeviceChoice& choice);

// "cpu" or "cuda", for a checkpoint.
std::string kind_of(at::Device device);

// What to make a c10::OptionalDeviceGuard of, so that a tensor which a task makes "on cuda" is on
// the rank's own GPU; nothing for the CPU.
std::optional<at::Device> gpu_of(at::Device device);

}  // namespace lockstep::train
