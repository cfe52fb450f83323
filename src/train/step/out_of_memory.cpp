#include "train/step/out_of_memory.h"

#include <regex>

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep::train {
namespace {

// libtorch knows the sizes, but tells them only in its text: "CUDA out of memory. Tried to allocate
// 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 1.20 GiB is free. ..."
std::string sizes_in(const std::string& text) {
  static const std::regex kSizes(
      "Tried to allocate ([0-9.]+ [A-Za-z]+)\\. (GPU [0-9]+) has a total capacity of "
      "([0-9.]+ [A-Za-z]+) of which ([0-9.]+ [A-Za-z]+) is free");
  std::smatch found;
  if (!std::regex_search(text, found, kSizes)) {
    return text.substr(0, text.find('\n'));
  }
  return fmt::format("{} were asked for, and {} of {}'s {} are free", found[1].str(),
                     found[4].str(), found[2].str(), found[3].str());
}

}  // namespace

void throw_out_of_memory(const c10::OutOfMemoryError& error, const std::string& what,
                         const std::string& way_out) {
  throw OutOfMemoryError("{} does not fit into the GPU's memory: {}; {}", what,
                         sizes_in(error.what_without_backtrace()), way_out);
}

std::string smaller_pieces(const TrainerOptions& options, int64_t piece_size) {
  if (piece_size == 1) {
    return "a piece is one sample already: use smaller samples or a smaller model, or "
           "train.precision = \"bfloat16\"";
  }
  return fmt::format(
      "lower train.batch_size (it is {}), or raise train.accumulate (it is {}), which computes the "
      "same batch in smaller pieces",
      options.batch_size, options.accumulate);
}

}  // namespace lockstep::train
