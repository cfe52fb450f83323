#pragma once

// The tensors in what a forward() returns: a tensor, or optionals, pairs, tuples, vectors, arrays
// and maps of such, nested as you like. For a type of your own write, beside it,
//
//   void append_tensors(const MyOutput& output, std::vector<at::Tensor>& tensors);

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

template <typename T>
std::vector<at::Tensor> tensors_in(const T& output) {
  std::vector<at::Tensor> tensors;
  detail::append_any(output, tensors);
  return tensors;
}

}  // namespace lockstep
