#pragma once

// Small tables of text.

#include <string>
#include <vector>

namespace lockstep::explain {

struct Table {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;  // each as long as the header
};

// Columns aligned by their width on a terminal, two spaces between them, `indent` before each line.
// A column of which all cells are numbers is aligned to the right.
std::string render_table(const Table& table, size_t indent);

// Numbers of one table, written with the same count of decimals: the fewest (at most
// `max_decimals`) that show all of them to 9 digits; very large and very small ones in scientific
// notation.
class NumberFormat {
 public:
  explicit NumberFormat(const std::vector<double>& values, int max_decimals = 4);

  std::string operator()(double value) const;

  // "0.2, 0.2, 0.3"
  std::string list(const std::vector<double>& values) const;

  // One text per value.
  std::vector<std::string> cells(const std::vector<double>& values) const;

 private:
  int decimals_ = 0;
  bool scientific_ = false;
};

}  // namespace lockstep::explain
