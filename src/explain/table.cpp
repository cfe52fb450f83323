#include "explain/table.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

#include "explain/width.h"

namespace lockstep::explain {
namespace {

constexpr double kSmallestPlain = 1e-4;
constexpr double kLargestPlain = 1e7;
constexpr double kInvisible = 1e-9;  // a difference that rounding errors make, not the lesson

bool is_number(const std::string& text) {
  char* end = nullptr;
  std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0';
}

struct Column {
  size_t width = 0;
  bool right = true;
};

Column measure(const Table& table, size_t column) {
  Column result{.width = display_width(table.header[column])};
  for (const auto& row : table.rows) {
    result.width = std::max(result.width, display_width(row[column]));
    result.right = result.right && is_number(row[column]);
  }
  return result;
}

std::string render_line(const std::vector<std::string>& cells, const std::vector<Column>& columns,
                        size_t indent) {
  std::string line(indent, ' ');
  for (size_t i = 0; i < cells.size(); ++i) {
    const std::string padding(columns[i].width - display_width(cells[i]), ' ');
    line += columns[i].right ? padding + cells[i] : cells[i] + padding;
    line += "  ";
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

// Decimals that show `value` up to an invisible difference.
int needed_decimals(double value, int max_decimals) {
  double scale = 1;
  for (int decimals = 0; decimals < max_decimals; ++decimals, scale *= 10) {
    const double scaled = value * scale;
    if (std::abs(scaled - std::round(scaled)) <= kInvisible * std::max(1.0, std::abs(scaled))) {
      return decimals;
    }
  }
  return max_decimals;
}

}  // namespace

std::string render_table(const Table& table, size_t indent) {
  std::vector<Column> columns;
  for (const auto& row : table.rows) {
    LOCKSTEP_CHECK(row.size() == table.header.size(), "a row has {} cells, the header {}",
                   row.size(), table.header.size());
  }
  std::vector<std::string> rule;
  for (size_t i = 0; i < table.header.size(); ++i) {
    columns.push_back(measure(table, i));
    rule.emplace_back(columns[i].width, '-');
  }
  std::string text =
      render_line(table.header, columns, indent) + render_line(rule, columns, indent);
  for (const auto& row : table.rows) {
    text += render_line(row, columns, indent);
  }
  return text;
}

NumberFormat::NumberFormat(const std::vector<double>& values, int max_decimals) {
  for (const double value : values) {
    const double size = std::abs(value);
    scientific_ =
        scientific_ || size >= kLargestPlain || (size < kSmallestPlain && size > kInvisible);
    decimals_ = std::max(decimals_, needed_decimals(value, max_decimals));
  }
}

std::string NumberFormat::operator()(double value) const {
  if (scientific_) {
    return fmt::format("{:.5g}", value);
  }
  // -0.0 and what rounds to it would print as "-0".
  const std::string text = fmt::format("{:.{}f}", value, decimals_);
  const bool zero = text.find_first_not_of("-0.") == std::string::npos;
  return zero && text.front() == '-' ? text.substr(1) : text;
}

std::string NumberFormat::list(const std::vector<double>& values) const {
  return fmt::format("{}", fmt::join(cells(values), ", "));
}

std::vector<std::string> NumberFormat::cells(const std::vector<double>& values) const {
  std::vector<std::string> texts;
  for (const double value : values) {
    texts.push_back((*this)(value));
  }
  return texts;
}

}  // namespace lockstep::explain
