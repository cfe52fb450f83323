#include "formats/torch/unpickler.h"

#include <bit>
#include <unordered_map>

#include <lockstep/base/error.h>

#include "formats/little_endian.h"
#include "formats/tensor_info.h"
#include "formats/torch/pickle_opcodes.h"
#include "formats/torch/pickle_rebuild.h"

namespace lockstep::formats {

namespace {

using namespace opcode;
using Kind = PickleValue::Kind;
using Role = PickleNode::Role;

constexpr size_t kMaxStack = 1'000'000;
constexpr size_t kMaxGlobalName = 256;
constexpr char kProtocol = 2;

class Machine {
 public:
  Machine(std::string_view bytes, const UnpickleOptions& options)
      : bytes_(bytes), options_(options), nodes_(options.limits), rebuild_(nodes_, options.ids) {}

  Pickle run() {
    try {
      NodeId root = 0;
      while (!step(root)) {
      }
      Pickle pickle{.root = nodes_.expand(root), .size_bytes = next_};
      pickle.tensors = std::move(rebuild_.tensors);
      pickle.storages = std::move(rebuild_.storages);
      return pickle;
    } catch (const FormatError& error) {
      throw FormatError("{}: the pickle has, at offset {}{}, {}", options_.file,
                        options_.offset + opcode_at_, tensor_name(), error.what());
    }
  }

 private:
  // One opcode; true at the end, with `root` set.
  bool step(NodeId& root) {
    opcode_at_ = next_;
    const char code = take(1)[0];
    if (code == kStop) {
      if (stack_.size() != 1 || !marks_.empty()) {
        throw FormatError("an end with {} values and {} open marks; one value belongs there",
                          stack_.size(), marks_.size());
      }
      root = stack_[0];
      return true;
    }
    if (!scalar(code) && !container(code) && !memo(code) && !call(code)) {
      throw FormatError("the opcode {:#04x}, which is not known or not safe",
                        static_cast<unsigned char>(code));
    }
    return false;
  }

  bool scalar(char code) {
    switch (code) {
      case kProto:
        if (take(1)[0] != kProtocol) {
          throw FormatError("a protocol that is not 2; save the file with torch's default");
        }
        return true;
      case kNone:
        return push({.kind = Kind::None});
      case kNewTrue:
      case kNewFalse:
        return push({.kind = Kind::Bool, .integer = code == kNewTrue});
      case kBinInt:
        return push_int(number_at<int32_t>(take(4), 0));
      case kBinInt1:
        return push_int(number_at<uint8_t>(take(1), 0));
      case kBinInt2:
        return push_int(number_at<uint16_t>(take(2), 0));
      case kLong1:
        return push_long(take(number_at<uint8_t>(take(1), 0)));
      case kBinFloat: {
        const std::string_view digits = take(8);
        uint64_t bits = 0;
        for (const char digit : digits) {
          bits = bits << 8 | static_cast<unsigned char>(digit);
        }
        return push({.kind = Kind::Float, .real = std::bit_cast<double>(bits)});
      }
      case kBinUnicode:
        return push_text(take(number_at<uint32_t>(take(4), 0)));
      case kShortBinString:
        return push_text(take(number_at<uint8_t>(take(1), 0)));
      default:
        return false;
    }
  }

  bool container(char code) {
    switch (code) {
      case kMark:
        if (marks_.size() >= kMaxStack) {
          throw FormatError("more than {} marks, the limit", kMaxStack);
        }
        marks_.push_back(stack_.size());
        return true;
      case kEmptyTuple:
        return push({.kind = Kind::Tuple});
      case kTuple:
        return push({.kind = Kind::Tuple, .items = pop_to_mark()});
      case kTuple1:
      case kTuple2:
      case kTuple3:
        return push(
            {.kind = Kind::Tuple, .items = pop_many(static_cast<size_t>(code - kTuple1 + 1))});
      case kEmptyList:
        return push({.kind = Kind::List});
      case kEmptySet:
        return push({.kind = Kind::Set});
      case kEmptyDict:
        return push({.kind = Kind::Dict});
      case kAppend:
        return extend(Kind::List, pop_many(1));
      case kAppends:
        return extend(Kind::List, pop_to_mark());
      case kSetItem:
        return extend(Kind::Dict, pop_many(2));
      case kSetItems:
        return extend(Kind::Dict, pop_to_mark());
      default:
        return false;
    }
  }

  bool memo(char code) {
    switch (code) {
      case kBinPut:
        return remember(number_at<uint8_t>(take(1), 0));
      case kLongBinPut:
        return remember(number_at<uint32_t>(take(4), 0));
      case kBinGet:
        return recall(number_at<uint8_t>(take(1), 0));
      case kLongBinGet:
        return recall(number_at<uint32_t>(take(4), 0));
      default:
        return false;
    }
  }

  bool call(char code) {
    switch (code) {
      case kGlobal:
        return push_global();
      case kBinPersId:
        return push(options_.ids == PersistentIds::Tar ? known_tensor(pop())
                                                       : rebuild_.storage(pop()));
      case kReduce:
      case kNewObj: {
        const NodeId arguments = pop();
        const NodeId result = rebuild_.call(top(), arguments);
        pop();
        return push(result);
      }
      case kBuild:
        // What a state_dict calls _metadata: versions of modules, of no use here.
        pop();
        if (!nodes_[top()].is_ordered) {
          throw FormatError("a state for something that is no OrderedDict");
        }
        return true;
      default:
        return false;
    }
  }

  NodeId known_tensor(NodeId id) {
    const PickleNode& node = nodes_[id];
    const std::string key = node.is(Kind::Int) ? std::to_string(node.integer) : node.text;
    const bool is_key = node.is(Kind::Int) || node.is(Kind::String);
    const auto none = std::unordered_map<std::string, size_t>{};
    const auto& tensors = options_.tensors != nullptr ? *options_.tensors : none;
    const auto found = is_key ? tensors.find(key) : tensors.end();
    if (found == tensors.end()) {
      throw FormatError("a persistent id that is not a tensor of this container");
    }
    return nodes_.add({.kind = Kind::Tensor, .integer = static_cast<int64_t>(found->second)});
  }

  bool push_global() {
    const std::string_view module = take_line();
    const std::string_view name = take_line();
    const auto global = options_.ids == PersistentIds::Tar ? find_tar_global(module, name)
                                                           : find_global(module, name);
    if (!global) {
      throw FormatError(
          "the constructor {}, which is not in the table of known ones; nothing is "
          "executed here. Save only tensors, numbers, text, lists and dicts",
          base::shown(fmt::format("{}.{}", module, name)));
    }
    if (global->callee == Callee::DType) {
      return push({.kind = Kind::DType, .integer = static_cast<int64_t>(*global->dtype)});
    }
    return push({.role = Role::Global, .global = *global});
  }

  bool push_long(std::string_view digits) {
    if (digits.size() > sizeof(int64_t)) {
      return push({.kind = Kind::BigInt, .text = std::string(digits)});
    }
    const bool is_negative = !digits.empty() && (digits.back() & 0x80) != 0;
    std::string padded(digits);
    padded.resize(sizeof(int64_t), is_negative ? '\xff' : '\0');
    return push_int(number_at<int64_t>(padded, 0));
  }

  bool push_int(int64_t value) { return push({.kind = Kind::Int, .integer = value}); }
  bool push_text(std::string_view text) {
    return push({.kind = Kind::String, .text = std::string(text)});
  }
  bool push(PickleNode node) { return push(nodes_.add(std::move(node))); }
  bool push(NodeId id) {
    if (stack_.size() >= kMaxStack) {
      throw FormatError("more than {} values on its stack, the limit", kMaxStack);
    }
    stack_.push_back(id);
    return true;
  }

  NodeId top() const {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) {
      throw FormatError("an opcode that needs more values than there are");
    }
    return stack_.back();
  }

  NodeId pop() {
    const NodeId id = top();
    stack_.pop_back();
    return id;
  }

  std::vector<NodeId> pop_many(size_t count) {
    std::vector<NodeId> ids(count);
    for (size_t i = count; i-- > 0;) {
      ids[i] = pop();
    }
    return ids;
  }

  std::vector<NodeId> pop_to_mark() {
    if (marks_.empty()) {
      throw FormatError("an opcode that needs a mark, and there is none");
    }
    const size_t mark = marks_.back();
    marks_.pop_back();
    std::vector<NodeId> ids(stack_.begin() + static_cast<std::ptrdiff_t>(mark), stack_.end());
    stack_.resize(mark);
    return ids;
  }

  bool extend(Kind kind, const std::vector<NodeId>& ids) {
    PickleNode& node = nodes_[top()];
    if (!node.is(kind) || (kind == Kind::Dict && ids.size() % 2 != 0)) {
      throw FormatError("items for something that is no {}, or a key without a value",
                        kind == Kind::Dict ? "dict" : "list");
    }
    nodes_.charge(ids.size() * sizeof(NodeId));
    node.items.insert(node.items.end(), ids.begin(), ids.end());
    return true;
  }

  bool remember(uint32_t slot) {
    if (memo_.size() >= options_.limits.num_values) {
      throw FormatError("more than {} remembered values, the limit", options_.limits.num_values);
    }
    memo_[slot] = top();
    return true;
  }

  bool recall(uint32_t slot) {
    const auto found = memo_.find(slot);
    if (found == memo_.end()) {
      throw FormatError("a use of slot {}, where nothing was remembered", slot);
    }
    return push(found->second);
  }

  std::string_view take(size_t count) {
    if (count > bytes_.size() - next_) {
      throw FormatError("{} bytes where {} are left: it is truncated", count,
                        bytes_.size() - next_);
    }
    next_ += count;
    return bytes_.substr(next_ - count, count);
  }

  std::string_view take_line() {
    const size_t end = bytes_.substr(next_, kMaxGlobalName).find('\n');
    if (end == std::string_view::npos) {
      throw FormatError("a name that does not end within {} bytes", kMaxGlobalName);
    }
    return take(end + 1).substr(0, end);
  }

  // The key that waits on the stack for the tensor which is being made.
  std::string tensor_name() const {
    for (size_t i = stack_.size(); i-- > 0 && i + 4 > stack_.size();) {
      const PickleNode& node = nodes_[stack_[i]];
      if (node.is(Kind::String) && node.text != "storage") {
        return fmt::format(" (near {})", base::shown(node.text));
      }
    }
    return "";
  }

  std::string_view bytes_;
  const UnpickleOptions& options_;
  size_t next_ = 0;
  size_t opcode_at_ = 0;
  PickleNodes nodes_;
  PickleRebuild rebuild_;
  std::vector<NodeId> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint32_t, NodeId> memo_;
};

}  // namespace

Pickle unpickle(std::string_view bytes, const UnpickleOptions& options) {
  return Machine(bytes, options).run();
}

}  // namespace lockstep::formats
