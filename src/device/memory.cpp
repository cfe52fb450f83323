#include "device/memory.h"

#include <cstdio>
#include <fstream>
#include <mutex>
#include <string>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep::device {
namespace {

// In a function: a test may make a CopiesOnCpu before main().
struct OnCpu {
  std::mutex mutex;
  CopiesOnCpu::Make make;
};
OnCpu& on_cpu() {
  static OnCpu* const state = new OnCpu;  // never deleted: it may be asked after main()
  return *state;
}

constexpr double kGiga = 1e9;

std::string host_text() {
  const auto bytes = available_on_host();
  return bytes
             ? fmt::format("the host has {:.2f} GB available", static_cast<double>(*bytes) / kGiga)
             : "how much the host has available is not known";
}

std::string free_on(at::Device device) {
  if (device.is_cpu()) {
    return host_text();
  }
  try {
    const auto [free, total] =
        c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index());
    return fmt::format("{:.2f} of its {:.2f} GB are free", static_cast<double>(free) / kGiga,
                       static_cast<double>(total) / kGiga);
  } catch (const std::exception&) {
    return "how much of it is free is not known";
  }
}

std::string size_text(uint64_t bytes) {
  const auto size = static_cast<double>(bytes);
  return size >= kGiga ? fmt::format("{:.2f} GB", size / kGiga)
                       : fmt::format("{:.2f} MB", size / 1e6);
}

}  // namespace

bool needs_copies(at::Device device) {
  if (!device.is_cpu()) {
    return true;
  }
  const std::lock_guard lock(on_cpu().mutex);
  return on_cpu().make != nullptr;
}

bool is_dense(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided &&
         (tensor.is_cpu() || tensor.is_cuda());
}

std::unique_ptr<Copies> copies_of(at::Device device) {
  if (!device.is_cpu()) {
    return make_copies(device);
  }
  const std::lock_guard lock(on_cpu().mutex);
  LOCKSTEP_CHECK(on_cpu().make != nullptr, "copies of the CPU");
  return on_cpu().make(device);
}

CopiesOnCpu::CopiesOnCpu(Make make) {
  const std::lock_guard lock(on_cpu().mutex);
  on_cpu().make = std::move(make);
}
CopiesOnCpu::~CopiesOnCpu() {
  const std::lock_guard lock(on_cpu().mutex);
  on_cpu().make = nullptr;
}

at::Tensor with_memory(const Wanted& wanted, const std::function<at::Tensor()>& make) {
  try {
    return make();
  } catch (const c10::OutOfMemoryError& error) {
    throw UsageError(
        "{}: {} has no memory for {}: {}; use fewer ranks per GPU, a smaller model or batch, or "
        "end the other programs that use this GPU ({})",
        wanted.user, wanted.device.str(), size_text(wanted.bytes), free_on(wanted.device),
        error.what_without_backtrace());
  }
}

std::optional<uint64_t> available_on_host() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    unsigned long long kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %llu", &kib) == 1) {
      return uint64_t{kib} * 1024;
    }
  }
  return std::nullopt;
}

at::Tensor pinned_memory(Copies& copies, std::string_view user, uint64_t bytes) {
  try {
    return copies.host_memory(static_cast<int64_t>(bytes));
  } catch (const c10::Error& error) {  // libtorch's own and the CUDA runtime's
    throw UsageError("{}: the host has no pinned memory for {}: {} ({})", user, size_text(bytes),
                     host_text(), error.what_without_backtrace());
  }
}

at::Tensor bytes_of(const at::Tensor& contiguous) {
  return contiguous.detach().view({-1}).view(at::kByte);
}

}  // namespace lockstep::device
