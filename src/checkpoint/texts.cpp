#include "checkpoint/texts.h"

#include <algorithm>

#include <ATen/ops/zeros.h>

#include "weights/agree.h"

namespace lockstep::checkpoint {

std::vector<std::string> gather_texts(Group& group, const std::string& text) {
  if (group.size() == 1) {
    return {text};
  }
  const std::vector<int64_t> sizes =
      weights::gather_numbers(group, static_cast<int64_t>(text.size()));
  const int64_t widest = *std::max_element(sizes.begin(), sizes.end());
  std::vector<std::string> texts(sizes.size());
  if (widest == 0) {
    return texts;
  }
  const at::Tensor own = at::zeros({widest}, at::kByte);
  std::copy(text.begin(), text.end(), own.mutable_data_ptr<uint8_t>());
  const at::Tensor all = at::zeros({widest * group.size()}, at::kByte);
  group.all_gather(all, own);
  const uint8_t* data = all.const_data_ptr<uint8_t>();
  for (size_t i = 0; i < texts.size(); ++i) {
    const uint8_t* begin = data + static_cast<int64_t>(i) * widest;
    texts[i].assign(begin, begin + sizes[i]);
  }
  return texts;
}

std::string first_text(const std::vector<std::string>& texts) {
  const auto found = std::find_if(texts.begin(), texts.end(),
                                  [](const std::string& text) { return !text.empty(); });
  return found == texts.end() ? "" : *found;
}

}  // namespace lockstep::checkpoint
