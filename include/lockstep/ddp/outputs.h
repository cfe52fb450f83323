#pragma once

// The tensors in what a forward() returns. DistributedDataParallel looks for them to notice where
// backward begins. It finds them in a tensor and in optionals, pairs, tuples, vectors, arrays and
// maps of these, nested as you like. For a type of your own, declare append_tensors() in its
// namespace.
//
// Example at namespace scope:
//   struct MyOutput {
//     at::Tensor logits;
//     at::Tensor hidden;
//   };
//   void append_tensors(const MyOutput& output, std::vector<at::Tensor>& tensors) {
//     tensors.push_back(output.logits);
//     tensors.push_back(output.hidden);
//   }
//
// Whatever is none of these, a number or a string for example, holds no tensors; that is not an
// error.

#include <optional>
#include <tuple>
#include <type_traits>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {
namespace detail {

template <typename T>
concept OwnOutput = requires(const T& output, std::vector<at::Tensor>& tensors) {
  append_tensors(output, tensors);
};

template <typename T>
concept TupleLike = requires {
  std::tuple_size<T>::value;
};

template <typename T>
concept Range = requires(const T& range) {
  range.begin();
  range.end();
};

template <typename T>
void append_any(const T& output, std::vector<at::Tensor>& tensors) {
  if constexpr (std::is_convertible_v<const T&, const at::Tensor&>) {
    tensors.push_back(output);
  } else if constexpr (OwnOutput<T>) {
    append_tensors(output, tensors);
  } else if constexpr (TupleLike<T>) {
    std::apply([&](const auto&... items) { (append_any(items, tensors), ...); }, output);
  } else if constexpr (Range<T>) {
    if constexpr (!std::is_same_v<std::decay_t<decltype(*output.begin())>, char>) {
      for (const auto& item : output) {
        append_any(item, tensors);
      }
    }
  } else if constexpr (requires {
                         output.has_value();
                         *output;
                       }) {
    if (output.has_value()) {
      append_any(*output, tensors);
    }
  }
}

}  // namespace detail

// Returns the tensors in `output`, in order. They are handles, which share the output's memory.
template <typename T>
std::vector<at::Tensor> tensors_in(const T& output) {
  std::vector<at::Tensor> tensors;
  detail::append_any(output, tensors);
  return tensors;
}

}  // namespace lockstep
