#pragma once

// What all benchmarks do with their raw times before they print them.

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace lockstep {

double median(std::vector<double> values);  // of nothing: 0
double rounded_to(int digits, double value);

// Returns the median, or null where nothing was measured.
nlohmann::ordered_json median_json(int digits, const std::vector<double>& values);

// Returns every value, rounded.
nlohmann::ordered_json raw_figures_json(int digits, const std::vector<double>& values);

std::string bench_bar(double fraction);  // of 20 characters, to an eighth of one

}  // namespace lockstep
