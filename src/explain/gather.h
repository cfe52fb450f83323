#pragma once

// What the lessons do with tensors, in their own words.

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/comm/group.h>

#include "explain/report.h"

namespace lockstep::explain {

using Rows = std::vector<std::vector<double>>;

// Collective: every rank's tensor, stacked: row r is rank r's.
at::Tensor gather(Group& group, const at::Tensor& mine);

// True if all rows hold the same bits: stricter than ==, for which 0.0 and -0.0 are equal.
bool same_bits(const at::Tensor& rows);

// A float64 tensor that holds `values`.
at::Tensor as_tensor(const std::vector<double>& values);

// The other way round, from any type.
std::vector<double> as_vector(const at::Tensor& tensor);
Rows as_rows(const at::Tensor& tensor);
std::vector<int64_t> as_integers(const at::Tensor& tensor);

// A report with the lesson's name, ranks and backend filled in.
Report begin_report(const Group& group, const std::string& lesson, const std::string& title);

// A table with one line per rank: its number, then its row.
Table rank_table(const std::string& rank_word, const std::vector<std::string>& names,
                 const Rows& rows);

// Throws UsageError unless the group has the size that the built-in numbers are for.
void require_lesson_ranks(const Group& group, const std::string& lesson);

}  // namespace lockstep::explain
