#include "ddp/model_check.h"

#include <ATen/ops/full.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

#include "base/text/text.h"
#include "comm/agree.h"
#include "comm/work/heard_by_all.h"

namespace lockstep::ddp {
namespace {

// The number of the device may differ between ranks. What is on another one than the first tensor
// is told apart, so that a model that is spread over several on one rank only is found on all.
std::string place_of(const at::Tensor& tensor, const at::Tensor& first) {
  if (tensor.is_cpu()) {
    return "";
  }
  return fmt::format(" on {}{}", c10::DeviceTypeName(tensor.device().type(), /*lower_case=*/true),
                     tensor.device() == first.device() || first.is_cpu() ? "" : ", another one");
}

// One line per tensor: all that must agree.
std::vector<std::string> describe(const NamedTensors& tensors) {
  std::vector<std::string> lines;
  for (const auto& [name, tensor] : tensors) {
    lines.push_back(fmt::format("{}: {} [{}]{}{}", name, c10::toString(tensor.scalar_type()),
                                fmt::join(tensor.sizes(), ", "),
                                place_of(tensor, tensors.front().second),
                                tensor.requires_grad() ? "" : " (not trained)"));
  }
  return lines;
}

std::string join(const std::vector<std::string>& lines) {
  return fmt::format("{}", fmt::join(lines, "\n"));
}

}  // namespace

void check_same_model(Group& group, const NamedTensors& tensors) {
  check_same_lines(group, describe(tensors),
                   {.what = "ddp: the model differs between ranks",
                    .advice = "build the same model on every rank"});
}

void check_same_lines(Group& group, const std::vector<std::string>& lines,
                      const Difference& difference) {
  const std::string mine = join(lines);
  const std::string first = comm::broadcast_text(group, mine);
  at::Tensor differing = at::full({1}, mine == first ? group.size() : group.rank(), at::kLong);
  group.all_reduce(differing, {.op = ReduceOp::Min});
  const auto rank = static_cast<int>(differing.item<int64_t>());
  if (rank == group.size()) {
    return;
  }
  // All ranks learn the lowest differing rank's lines, so that all can say the same sentence.
  const std::vector<std::string> theirs =
      base::split(comm::broadcast_text(group, mine, rank), '\n');
  const std::vector<std::string> ours = base::split(first, '\n');
  size_t i = 0;
  while (i < ours.size() && i < theirs.size() && ours[i] == theirs[i]) {
    ++i;
  }
  comm::wait_until_all_heard(group);
  throw UsageError("{}: rank 0 has {}, rank {} has {}; {}", difference.what,
                   i < ours.size() ? ours[i] : "nothing more", rank,
                   i < theirs.size() ? theirs[i] : "nothing more", difference.advice);
}

}  // namespace lockstep::ddp
