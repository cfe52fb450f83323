#include "bench/figures.h"

#include <algorithm>
#include <cmath>

namespace lockstep {

namespace {

constexpr int kBarWidth = 20;

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) {
    return 0;
  }
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double rounded_to(int digits, double value) {
  const double scale = std::pow(10, digits);
  return std::round(value * scale) / scale;
}

nlohmann::ordered_json median_json(int digits, const std::vector<double>& values) {
  if (values.empty()) {
    return nullptr;
  }
  return rounded_to(digits, median(values));
}

nlohmann::ordered_json raw_figures_json(int digits, const std::vector<double>& values) {
  auto list = nlohmann::ordered_json::array();
  for (const double value : values) {
    list.push_back(rounded_to(digits, value));
  }
  return list;
}

std::string bench_bar(double fraction) {
  constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const double limited = std::clamp(fraction, 0.0, 1.0);
  const auto eighths = std::max<long>(1, std::lround(limited * kBarWidth * 8));
  std::string text;
  for (long i = 0; i < eighths / 8; ++i) {
    text += "█";
  }
  text += kEighths[eighths % 8];
  const long used = (eighths + 7) / 8;
  for (long i = used; i < kBarWidth; ++i) {
    text += "·";
  }
  return text;
}

}  // namespace lockstep
