#include "told_once.h"

#include <cstdio>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

void tell(const std::string& command, const std::string& mistake) {
  fmt::print(stderr, "lockstep {}: {}\n", command, mistake);
  std::fflush(stderr);
}

int agree(const std::string& command, Group& group, const std::string& mistake, int64_t code) {
  const int64_t nobody = group.size();
  const at::Tensor teller = at::empty({2}, at::kLong);
  auto* data = teller.mutable_data_ptr<int64_t>();
  data[0] = code != 0 ? group.rank() : nobody;
  data[1] = code != 0 ? code : 3;  // the lowest counts
  group.all_reduce(teller, {.op = ReduceOp::Min});
  if (data[0] == nobody) {
    return 0;
  }
  if (data[0] == group.rank()) {
    tell(command, mistake);
  }
  group.barrier();
  return static_cast<int>(data[1]);
}

}  // namespace

int told_once(const std::string& command, Group& group, const std::function<void()>& work) {
  std::string mistake;
  int64_t code = 0;
  try {
    work();
  } catch (const CommError&) {
    throw;  // there is nobody to agree with
  } catch (const OutOfMemoryError&) {
    throw;  // the others are in the middle of a step, in which they lose this rank
  } catch (const UsageError& error) {
    mistake = error.what();
    code = 2;
  } catch (const Error& error) {
    mistake = error.what();
    code = 1;
  }
  try {
    return agree(command, group, mistake, code);
  } catch (const CommError&) {
    if (code == 0) {
      throw;
    }
    tell(command, mistake);  // the others are in the middle of a step: they learn of our end
    return static_cast<int>(code);
  }
}

}  // namespace lockstep
