#include "explain/gather.h"

#include <torch/torch.h>

#include <lockstep/base/error.h>

#include "explain/lesson.h"

namespace lockstep::explain {

at::Tensor gather(Group& group, const at::Tensor& mine) {
  std::vector<int64_t> sizes = mine.sizes().vec();
  sizes.insert(sizes.begin(), group.size());
  const at::Tensor all = torch::empty(sizes, mine.options());
  group.all_gather(all, mine.contiguous());
  return all;
}

bool same_bits(const at::Tensor& rows) {
  const at::Tensor bits = rows.contiguous().view(torch::kUInt8).reshape({rows.size(0), -1});
  return bits.equal(bits.slice(0, 0, 1).expand_as(bits));
}

at::Tensor as_tensor(const std::vector<double>& values) {
  return torch::tensor(values, torch::kFloat64);
}

std::vector<double> as_vector(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().to(torch::kFloat64).contiguous().reshape({-1});
  const double* first = flat.const_data_ptr<double>();
  return {first, first + flat.numel()};
}

Rows as_rows(const at::Tensor& tensor) {
  Rows rows;
  for (int64_t i = 0; i < tensor.size(0); ++i) {
    rows.push_back(as_vector(tensor[i]));
  }
  return rows;
}

std::vector<int64_t> as_integers(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(torch::kInt64).contiguous().reshape({-1});
  const int64_t* first = flat.const_data_ptr<int64_t>();
  return {first, first + flat.numel()};
}

Report begin_report(const Group& group, const std::string& lesson, const std::string& title) {
  Report report{.title = title};
  report.data["lesson"] = lesson;
  report.data["ranks"] = group.size();
  report.data["backend"] = group.backend_name();
  return report;
}

Table rank_table(const std::string& rank_word, const std::vector<std::string>& names,
                 const Rows& rows) {
  Table table{.header = {rank_word}};
  table.header.insert(table.header.end(), names.begin(), names.end());
  std::vector<double> all;
  for (const auto& row : rows) {
    all.insert(all.end(), row.begin(), row.end());
  }
  const NumberFormat format(all);
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    table.rows.push_back({std::to_string(rank)});
    for (const double value : rows[rank]) {
      table.rows.back().push_back(format(value));
    }
  }
  return table;
}

void require_lesson_ranks(const Group& group, const std::string& lesson) {
  if (group.size() != kLessonRanks) {
    throw UsageError(
        "explain {}: it is told with {} ranks, but this group has {}; start it with "
        "`lockstep explain {}`",
        lesson, kLessonRanks, group.size(), lesson);
  }
}

}  // namespace lockstep::explain
