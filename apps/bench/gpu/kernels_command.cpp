#include "bench/gpu/kernels_command.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>
#include <lockstep/device/device.h>

#include "bench/allreduce/bench_rank.h"
#include "bench/figures.h"
#include "bench/gpu/kernel_cases.h"
#include "bench/gpu/kernels_plan.h"
#include "device/plugin.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kCopyBytes = int64_t{1} << 30;
constexpr int kSets = 4;
constexpr int kSmallTokens = 200;
constexpr double kLongEnoughUs = 5e3;  // of the launches that are measured together

// Microseconds of what `work` queues.
double time_us(at::Device device, const std::function<void()>& work) {
  if (device.is_cpu()) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
        .count();
  }
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream stream = guard.getStream(device);
  c10::Event begin(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  c10::Event end(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  begin.record(stream);
  work();
  end.record(stream);
  end.synchronize();
  return begin.elapsedTime(end) * 1e3;
}

// One time for each repeat, of one call.
std::vector<double> times_us(const KernelCase& measured, at::Device device, int sets, int repeats) {
  int launches = sets;
  const auto all = [&] {
    for (int i = 0; i < launches; ++i) {
      measured.run(i % sets);
    }
  };
  all();  // warms up
  const double once = time_us(device, all) / launches;
  if (!measured.refill) {
    launches = sets * std::max(1, static_cast<int>(kLongEnoughUs / (once * sets)));
  }
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    if (measured.refill) {
      measured.refill();
    }
    times.push_back(time_us(device, all) / launches);
  }
  return times;
}

// The largest difference to the twin, divided by the larger of 1 and the value; each result of a
// gradient of cross entropy is as small as its rows are many.
double max_error(const KernelEntry& entry, const KernelPlace& like) {
  KernelPlace place = like;
  place.tokens = kSmallTokens;
  place.is_small = true;
  place.sets = 1;
  KernelPlace twin = place;
  twin.kernels = &device::cpu_kernels();
  twin.device = at::kCPU;
  std::vector<KernelCase> both;
  for (const KernelPlace& one : {place, twin}) {
    at::manual_seed(5);
    both.push_back(entry.make(one));
    both.back().run(0);
  }
  double worst = 0;
  for (size_t i = 0; i < both[0].results.size(); ++i) {
    const at::Tensor have = both[0].results[i].cpu().to(at::kDouble);
    const at::Tensor want = both[1].results[i].to(at::kDouble);
    const at::Tensor away = (have - want).abs() / want.abs().clamp_min(1);
    const double error = away.max().item<double>();
    // JSON has no word for what is not finite.
    worst = std::isfinite(error) ? std::max(worst, error) : std::numeric_limits<double>::max();
  }
  return worst;
}

double copy_gb_per_s(at::Device device, int repeats) {
  const int64_t bytes = device.is_cpu() ? kCopyBytes / 64 : kCopyBytes;
  const at::Tensor from = at::empty({bytes / 4}, at::TensorOptions(device)).normal_();
  const at::Tensor to = at::empty_like(from);
  const KernelCase copy{.run = [&](int) { to.copy_(from); }};
  return 2e-3 * static_cast<double>(bytes) / median(times_us(copy, device, 1, repeats));
}

// Enough sets that none is in the cache when its turn comes again. Cases that need more memory
// than a cache has anyway make one.
int sets_for(const KernelEntry& entry, const KernelPlace& place) {
  const bool rotates = entry.name.starts_with("norm_") || entry.name.starts_with("gelu_");
  return rotates && place.device.is_cuda() ? kSets : 1;
}

Json measure(const KernelEntry& entry, const KernelsPlan& plan, KernelPlace place, double copy) {
  const double error = max_error(entry, place);
  place.sets = sets_for(entry, place);
  const KernelCase measured = entry.make(place);
  const std::vector<double> times = times_us(measured, place.device, place.sets, plan.repeats);
  const double gb_per_s = 1e-3 * measured.bytes / median(times);
  return {{"name", entry.name},
          {"shape", measured.shape},
          {"dtype", place.type == at::kFloat ? "float32" : "bfloat16"},
          {"time_us", median_json(2, times)},
          {"bytes", static_cast<int64_t>(measured.bytes)},
          {"gb_per_s", rounded_to(1, gb_per_s)},
          {"share_of_copy", rounded_to(4, gb_per_s / copy)},
          {"max_error", error},
          {"times_us", raw_figures_json(2, times)}};
}

std::vector<KernelEntry> chosen_entries(const KernelsPlan& plan) {
  std::vector<KernelEntry> chosen;
  std::vector<std::string> names;
  for (const KernelEntry& entry : kernel_entries()) {
    names.push_back(entry.name);
    if (plan.names.empty() ||
        std::find(plan.names.begin(), plan.names.end(), entry.name) != plan.names.end()) {
      chosen.push_back(entry);
    }
  }
  for (const std::string& name : plan.names) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      throw UsageError("--only {}: there is no such kernel; there are {}", name,
                       fmt::join(names, ", "));
    }
  }
  return chosen;
}

KernelPlace place_of(const KernelsPlan& plan) {
  KernelPlace place{.device = local_device(), .tokens = plan.tokens};
  place.is_small = place.device.is_cpu();
  if (place.device.is_cuda()) {
    // Loads the plug-in, if it is there.
    place.kernels = device::cuda_kernels();
    if (!place.kernels) {
      throw UsageError("lockstep bench gpu: {}", device::plugin_state());
    }
  } else {
    place.kernels = &device::cpu_kernels();
  }
  return place;
}

void print_row(const Json& row) {
  print_now(fmt::format("{:<24} {:<9} {:<28} {:>10.2f} us {:>7.0f} GB/s {:>5.1f} %  {:.1e}\n",
                        row.at("name").get<std::string>(), row.at("dtype").get<std::string>(),
                        row.at("shape").get<std::string>(), row.at("time_us").get<double>(),
                        row.at("gb_per_s").get<double>(),
                        100 * row.at("share_of_copy").get<double>(),
                        row.at("max_error").get<double>()));
}

}  // namespace

int kernels_command(const std::string& text) {
  const auto plan = read_plan<KernelsPlan>(text, "lockstep bench gpu");
  setenv("LOCKSTEP_DEVICE", plan.device.c_str(), 1);  // read when CUDA begins
  enter_bench();
  const std::vector<KernelEntry> entries = chosen_entries(plan);
  KernelPlace place = place_of(plan);
  const double copy = copy_gb_per_s(place.device, plan.repeats);
  Json answer = {{"bench", "gpu"},
                 {"device", place.device.is_cuda() ? "cuda" : "cpu"},
                 {"tokens", plan.tokens},
                 {"repeats", plan.repeats},
                 {"copy_gb_per_s", rounded_to(1, copy)},
                 {"kernels", Json::array()}};
  for (const KernelEntry& entry : entries) {
    for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
      if (type == at::kBFloat16 && !entry.has_types) {
        continue;
      }
      place.type = type;
      const Json row = measure(entry, plan, place, copy);
      answer["kernels"].push_back(row);
      if (!plan.json) {
        print_row(row);
      }
    }
  }
  if (plan.json) {
    print_now(answer.dump() + "\n");
  }
  return 0;
}

}  // namespace lockstep
