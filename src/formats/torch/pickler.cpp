#include "formats/torch/pickler.h"

#include <bit>

#include <lockstep/base/error.h>

#include "base/text/utf8.h"
#include "formats/little_endian.h"
#include "formats/torch/pickle_opcodes.h"

namespace lockstep::formats {

namespace {

using namespace opcode;
using Kind = PickleValue::Kind;

// Without a memo: equal storages are recognised by their keys, and nothing else is large.
class Pickler {
 public:
  Pickler(std::span<const PickledTensor> tensors, std::span<const PickledStorage> storages)
      : tensors_(tensors), storages_(storages) {}

  std::string run(const PickleValue& root) {
    bytes_ = {kProto, 2};
    value(root);
    return bytes_ + kStop;
  }

 private:
  void value(const PickleValue& value) {
    switch (value.kind) {
      case Kind::None:
        bytes_ += kNone;
        return;
      case Kind::Bool:
        bytes_ += value.integer != 0 ? kNewTrue : kNewFalse;
        return;
      case Kind::Int:
        return integer(value.integer);
      case Kind::BigInt:
        bytes_ += {kLong1, static_cast<char>(value.text.size())};
        bytes_ += value.text;
        return;
      case Kind::Float:
        return real(value.real);
      case Kind::String:
        return text(value.text);
      case Kind::Bytes:
        return raw(value.text);
      case Kind::Tuple:
        return items(value.items, kTuple);
      case Kind::List:
        bytes_ += kEmptyList;
        return items(value.items, kAppends);
      case Kind::Dict:
        bytes_ += kEmptyDict;
        return items(value.items, kSetItems);
      case Kind::Set:
      case Kind::Size:
        return wrapped(value);
      case Kind::DType:
        return global("torch", torch_name_of(static_cast<DType>(value.integer)));
      case Kind::Device:
        global("torch", "device");
        text(value.text);
        bytes_ += {kTuple1, kReduce};
        return;
      case Kind::Tensor:
        return tensor(tensors_[static_cast<size_t>(value.integer)]);
    }
  }

  void integer(int64_t number) {
    if (number == static_cast<int32_t>(number)) {
      bytes_ += kBinInt;
      append_number<int32_t>(bytes_, static_cast<int32_t>(number));
    } else {
      bytes_ += {kLong1, sizeof number};
      append_number<int64_t>(bytes_, number);
    }
  }

  void real(double number) {
    bytes_ += kBinFloat;
    const auto bits = std::bit_cast<uint64_t>(number);
    for (int shift = 56; shift >= 0; shift -= 8) {
      bytes_ += static_cast<char>(bits >> shift);
    }
  }

  void text(std::string_view letters) {
    bytes_ += kBinUnicode;
    append_number<uint32_t>(bytes_, static_cast<uint32_t>(letters.size()));
    bytes_ += letters;
  }

  // Protocol 2 has no bytes: they are text of the first 256 characters.
  void raw(std::string_view data) {
    global("_codecs", "encode");
    std::string letters;
    for (const char c : data) {
      base::append_utf8(letters, static_cast<unsigned char>(c));
    }
    text(letters);
    text("latin1");
    bytes_ += {kTuple2, kReduce};
  }

  void items(const std::vector<PickleValue>& values, char end) {
    bytes_ += kMark;
    for (const PickleValue& item : values) {
      value(item);
    }
    bytes_ += end;
  }

  void wrapped(const PickleValue& value) {
    if (value.kind == Kind::Set) {
      global("__builtin__", "set");
      bytes_ += kEmptyList;
      items(value.items, kAppends);
    } else {
      global("torch", "Size");
      items(value.items, kTuple);
    }
    bytes_ += {kTuple1, kReduce};
  }

  void global(std::string_view module, std::string_view name) {
    bytes_ += fmt::format("{}{}\n{}\n", kGlobal, module, name);
  }

  void numbers(const std::vector<int64_t>& values) {
    bytes_ += kMark;
    for (const int64_t number : values) {
      integer(number);
    }
    bytes_ += kTuple;
  }

  void tensor(const PickledTensor& tensor) {
    const std::string_view storage_class = storage_class_of(tensor.dtype);
    const bool is_typed = !storage_class.empty();
    if (!is_typed && torch_name_of(tensor.dtype).empty()) {
      throw UsageError("cannot pickle a tensor of type {}: torch has none", name_of(tensor.dtype));
    }
    global("torch._utils", is_typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
    bytes_ += kMark;
    storage(storages_[tensor.storage], tensor.dtype, storage_class);
    integer(static_cast<int64_t>(tensor.offset));
    numbers(tensor.shape);
    numbers(tensor.strides);
    bytes_ += kNewFalse;
    global("collections", "OrderedDict");
    bytes_ += {kEmptyTuple, kReduce};
    if (!is_typed) {
      global("torch", torch_name_of(tensor.dtype));
    }
    bytes_ += {kTuple, kReduce};
  }

  void storage(const PickledStorage& storage, DType dtype, std::string_view storage_class) {
    bytes_ += kMark;
    text("storage");
    if (storage_class.empty()) {
      global("torch.storage", "UntypedStorage");
    } else {
      global("torch", storage_class);
    }
    text(storage.key);
    text("cpu");
    const uint64_t element_bytes =
        storage_class.empty() ? 1 : static_cast<uint64_t>(bits_of(dtype)) / 8;
    integer(static_cast<int64_t>(storage.size_bytes / element_bytes));
    bytes_ += {kTuple, kBinPersId};
  }

  std::span<const PickledTensor> tensors_;
  std::span<const PickledStorage> storages_;
  std::string bytes_;
};

}  // namespace

std::string pickle(const PickleValue& root, std::span<const PickledTensor> tensors,
                   std::span<const PickledStorage> storages) {
  return Pickler(tensors, storages).run(root);
}

}  // namespace lockstep::formats
