#include "explain/usage.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fcntl.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"

namespace lockstep::explain {
namespace {

// Returns the number after "name:" in one of the kernel's small tables.
int64_t number_in(const std::string& path, std::string_view name) {
  const std::string text = base::read_file(path);
  const size_t at = text.find(std::string(name) + ":");
  const size_t digit = at == text.npos ? at : text.find_first_of("0123456789", at);
  int64_t number = 0;
  if (digit == text.npos ||
      std::from_chars(text.data() + digit, text.data() + text.size(), number).ec != std::errc()) {
    throw IoError("{}: there is no number \"{}\" in it", path, name);
  }
  return number;
}

int64_t memory_bytes(std::string_view name) {
  return number_in("/proc/self/status", name) * 1024;
}

int64_t read_calls() {
  return number_in("/proc/self/io", "syscr");
}

}  // namespace

ReadCalls::ReadCalls() {
  const int64_t first = read_calls();
  before_ = read_calls();
  own_ = before_ - first;
}

int64_t ReadCalls::count() const {
  return read_calls() - before_ - own_;
}

PeakMemory::PeakMemory() {
  // 5 sets the peak back to what is held now.
  const base::UniqueFd fd = base::open_file("/proc/self/clear_refs", O_WRONLY);
  base::write_all(fd.get(), "5", 1);
  before_ = memory_bytes("VmRSS");
}

int64_t PeakMemory::extra_bytes() const {
  return std::max<int64_t>(memory_bytes("VmHWM") - before_, 0);
}

std::string size_text(int64_t bytes) {
  constexpr std::array kUnits = {"B", "kB", "MB", "GB"};
  auto number = static_cast<double>(bytes);
  size_t unit = 0;
  while (number >= 1000 && unit + 1 < kUnits.size()) {
    number /= 1000;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", number, unit == 0 ? 0 : 1, kUnits[unit]);
}

}  // namespace lockstep::explain
