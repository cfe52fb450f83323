#include "explain/average_input.h"

#include <charconv>
#include <cmath>

#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

namespace lockstep::explain {
namespace {

constexpr double kLargest = 1e100;  // sums and products of what is allowed stay finite

const std::vector<std::vector<double>> kGradients = {
    {0.1, 0.2, 0.3}, {0.2, 0.1, 0.4}, {0.3, 0.3, 0.2}, {0.2, 0.2, 0.3}};
const std::vector<double> kWeights = {0.5, 0.3, 0.2};  // ear, whisker, eye

nlohmann::json parse_json(const char* flag, const std::string& text, const char* example) {
  nlohmann::json value = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded() || !value.is_array() || value.empty()) {
    throw UsageError("explain average: {} '{}' is not a filled JSON list; write it like {} '{}'",
                     flag, text, flag, example);
  }
  return value;
}

double checked(const std::string& where, double value) {
  if (!(std::abs(value) <= kLargest)) {
    throw UsageError("explain average: {} is {}; numbers must lie between {} and {}", where, value,
                     -kLargest, kLargest);
  }
  return value;
}

double parse_lr(const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end) {
    throw UsageError("explain average: --lr {} is not a number; write it like --lr 0.1", text);
  }
  return checked("--lr", value);
}

std::vector<double> parse_numbers(const std::string& where, const nlohmann::json& list) {
  if (!list.is_array() || list.empty()) {
    throw UsageError("explain average: {} is {}; it must be a list of at least one number", where,
                     list.dump());
  }
  std::vector<double> numbers;
  for (const auto& item : list) {
    if (!item.is_number()) {
      throw UsageError("explain average: {} holds {}, which is not a number", where, item.dump());
    }
    numbers.push_back(checked("a number in " + where, item.get<double>()));
  }
  return numbers;
}

std::vector<std::vector<double>> parse_gradients(const std::string& text) {
  std::vector<std::vector<double>> rows;
  for (const auto& row : parse_json("--gradients", text, "[[0.1, 0.2], [0.3, 0.4]]")) {
    const std::string where = fmt::format("row {} of --gradients", rows.size());
    rows.push_back(parse_numbers(where, row));
    if (rows.back().size() != rows.front().size()) {
      throw UsageError(
          "explain average: {} has length {}, row 0 has length {}; every rank needs one number "
          "for each weight",
          where, rows.back().size(), rows.front().size());
    }
  }
  return rows;
}

}  // namespace

AverageInput parse_average_input(const AverageFlags& flags) {
  AverageInput input{.gradients = kGradients, .weights = kWeights};
  input.built_in = !flags.gradients && !flags.weights && !flags.lr && !flags.descend;
  input.descend = flags.descend;
  if (flags.lr) {
    input.lr = parse_lr(*flags.lr);
  }
  if (flags.gradients) {
    input.gradients = parse_gradients(*flags.gradients);
  }
  const size_t length = input.gradients.front().size();
  if (flags.weights) {
    const nlohmann::json list = parse_json("--weights", *flags.weights, "[0.5, 0.3]");
    input.weights = parse_numbers("--weights", list);
  } else if (input.weights.size() != length) {
    input.weights.assign(length, 0.0);
  }
  if (input.weights.size() != length) {
    throw UsageError(
        "explain average: --weights has length {}, the rows of the gradients have length {}; "
        "give one weight for each number of a row",
        input.weights.size(), length);
  }
  return input;
}

}  // namespace lockstep::explain
