#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "inspect.h"

namespace lockstep::app {

namespace {

std::string difference_text(const formats::TensorDifference& difference) {
  if (difference.a != difference.b && !difference.is_compared) {
    return fmt::format("{} and {}", difference.a, difference.b);
  }
  std::string text = difference.a == difference.b
                         ? difference.a
                         : fmt::format("{} and {}", difference.a, difference.b);
  if (difference.num_different == 0) {
    return text + ", equal values";
  }
  text += fmt::format(", {} values differ", difference.num_different);
  if (std::isnan(difference.max_difference)) {
    return text + ", some are NaN or infinite in one only";
  }
  return difference.max_difference == 0
             ? text
             : fmt::format("{}, at most by {:.6g}", text, difference.max_difference);
}

}  // namespace

std::string diff_text(const std::string& a, const std::string& b, const formats::WeightDiff& diff) {
  std::string text;
  for (const auto& [names, file] : {std::pair(&diff.only_a, &a), std::pair(&diff.only_b, &b)}) {
    for (const std::string& name : *names) {
      text += fmt::format("only in {}: {}\n", base::escaped(*file), base::escaped(name));
    }
  }
  for (const formats::TensorDifference& difference : diff.different) {
    text += fmt::format("{}: {}\n", base::escaped(difference.name), difference_text(difference));
  }
  return text + (diff.is_equal()
                     ? fmt::format("equal: {} tensors\n", diff.num_equal)
                     : fmt::format("different: {} tensors equal, {} different, {} and {} in one "
                                   "only\n",
                                   diff.num_equal, diff.different.size(), diff.only_a.size(),
                                   diff.only_b.size()));
}

std::string diff_json(const formats::WeightDiff& diff) {
  nlohmann::ordered_json json{{"is_equal", diff.is_equal()},
                              {"num_equal", diff.num_equal},
                              {"only_a", diff.only_a},
                              {"only_b", diff.only_b},
                              {"different", nlohmann::ordered_json::array()}};
  for (const formats::TensorDifference& difference : diff.different) {
    nlohmann::ordered_json one{{"name", difference.name},
                               {"a", difference.a},
                               {"b", difference.b},
                               {"is_compared", difference.is_compared}};
    if (difference.is_compared) {
      one["num_different"] = difference.num_different;
      one["max_difference"] = difference.max_difference;  // null where it is no number
    }
    json["different"].push_back(one);
  }
  return json.dump(2, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep::app
