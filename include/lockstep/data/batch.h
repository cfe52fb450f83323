#pragma once

// Batch: the tensors of some samples, by name. Two of them, `input` and `target`, are fields, and
// many tasks need no others.
//
// Example:
//   lockstep::Batch pair{.input = pictures, .target = labels};
//   lockstep::Batch texts{
//       .input = ids, .target = labels, .more = {{"attention_mask", mask}, {"weight", x}}};
//   auto weighted = texts["weight"] * loss(texts.input, texts.target);
//   auto on_device = texts.to(torch::kCPU);  // all four of them

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

// Tensors by name, in the order in which they were added. The names "input" and "target" are
// refused, since these two are fields of what holds the map.
class TensorMap {
 public:
  using Item = std::pair<std::string, at::Tensor>;

  TensorMap() = default;
  // Throws UsageError as set() does, and for a name that is there twice.
  TensorMap(std::initializer_list<Item> items);

  // Adds a tensor or takes the place of the one of that name. Throws UsageError for an undefined
  // tensor, an empty name and the two names of fields.
  void set(const std::string& name, at::Tensor tensor);

  // The tensor of that name; an undefined one if there is none.
  at::Tensor find(std::string_view name) const;

  bool empty() const { return items_.empty(); }
  size_t size() const { return items_.size(); }
  std::vector<Item>::const_iterator begin() const { return items_.begin(); }
  std::vector<Item>::const_iterator end() const { return items_.end(); }

 private:
  std::vector<Item> items_;
};

struct BatchCopyOptions {
  // Whether the host goes on while the copies are made, as for Tensor::to(). They are ordered on
  // the device's current stream, and need page-locked memory on the host: see pin_memory().
  bool non_blocking = false;
};

// Row i of each tensor belongs to sample i. Copies of a Batch share its tensors.
// Threads: const methods may be called concurrently.
struct Batch {
  at::Tensor input = {};   // "input"; may be undefined where a dataset has other names
  at::Tensor target = {};  // "target"; may be undefined, too
  TensorMap more = {};     // the tensors under other names, all defined

  // The tensor of that name, "input" and "target" included. Throws UsageError with the names that
  // are there if there is none. find() returns an undefined tensor instead.
  const at::Tensor& operator[](std::string_view name) const;
  at::Tensor find(std::string_view name) const;
  bool contains(std::string_view name) const { return find(name).defined(); }

  // Sets the field or the named tensor. Throws UsageError as TensorMap::set() does.
  void set(const std::string& name, at::Tensor tensor);

  // The names in the order of for_each_tensor().
  std::vector<std::string> names() const;

  // The number of rows of the target, or else of the input, or else of the first of `more`. Throws
  // UsageError if there is no tensor or if that one has no rows, being a single number.
  int64_t num_samples() const;

  // Visits each tensor that is defined: the input, the target and `more` in its order. What treats
  // all tensors of a batch alike goes through here or through map().
  using Visit = std::function<void(const std::string& name, const at::Tensor& tensor)>;
  void for_each_tensor(const Visit& visit) const;

  // A batch with the same names, each tensor being what `change` returns for it. A tensor that is
  // there twice, as the ids of a language model are input and target, is changed once and shared
  // by both names again.
  using Change = std::function<at::Tensor(const at::Tensor& tensor)>;
  Batch map(const Change& change) const;

  // The batch on a device. Tensors that are there already are shared.
  Batch to(at::Device device, BatchCopyOptions options = {}) const;

  // The batch in page-locked memory, dense, from which copies to a GPU can overlap other work.
  // Tensors on a device are shared. It needs a GPU.
  Batch pin_memory() const;
};

// The input (0) and the target (1): `auto [input, target] = batch;` and the same in a loop's head.
template <size_t Index>
requires(Index < 2) const at::Tensor& get(const Batch& batch) {
  return Index == 0 ? batch.input : batch.target;
}
template <size_t Index>
requires(Index < 2) at::Tensor& get(Batch& batch) {
  return Index == 0 ? batch.input : batch.target;
}
template <size_t Index>
requires(Index < 2) at::Tensor && get(Batch&& batch) {
  return std::move(Index == 0 ? batch.input : batch.target);
}

}  // namespace lockstep

template <>
struct std::tuple_size<lockstep::Batch> : std::integral_constant<size_t, 2> {};
template <size_t Index>
struct std::tuple_element<Index, lockstep::Batch> {
  using type = at::Tensor;
};
