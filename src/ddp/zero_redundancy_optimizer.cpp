#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <string>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/ddp/zero_redundancy_optimizer.h>

#include "base/round.h"
#include "base/text/text.h"
#include "comm/agree.h"
#include "ddp/device/device_path.h"

namespace lockstep {
namespace {

using ParamGroups = ZeroShards::ParamGroups;
using State = std::decay_t<decltype(std::declval<torch::optim::Optimizer&>().state())>;

constexpr int64_t kAlignment = 64;  // bytes: each parameter of the flat buffer starts on a line

int64_t aligned(int64_t bytes) {
  return base::rounded_up(bytes, kAlignment);
}

// Says what is wrong with these groups by themselves; empty if nothing is.
std::string fault_of(const ParamGroups& groups) {
  std::map<const void*, std::string> seen;
  std::optional<at::Device> device;  // of the first one
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t p = 0; p < groups[g].params().size(); ++p) {
      const at::Tensor& parameter = groups[g].params()[p];
      const std::string name = fmt::format("parameter {} of group {}", p, g);
      if (!parameter.defined() || !parameter.is_leaf()) {
        return fmt::format("{} is {}; give leaf tensors, such as model->parameters()", name,
                           parameter.defined() ? "no leaf of the graph" : "undefined");
      }
      if (parameter.layout() != at::kStrided) {
        return fmt::format("{} is not a dense tensor", name);
      }
      device = device.value_or(parameter.device());
      if (parameter.device() != *device) {
        return fmt::format("{} is on {}, the first one on {}; give parameters of one device", name,
                           parameter.device().str(), device->str());
      }
      const auto [other, is_new] = seen.emplace(parameter.unsafeGetTensorImpl(), name);
      if (!is_new) {
        return fmt::format("{} is {} again; name each parameter once", name, other->second);
      }
    }
  }
  return seen.empty() ? "there is no parameter to optimize" : "";
}

// One line per parameter: all that must agree.
std::vector<std::string> describe(const ParamGroups& groups) {
  std::vector<std::string> lines;
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t p = 0; p < groups[g].params().size(); ++p) {
      const at::Tensor& parameter = groups[g].params()[p];
      lines.push_back(fmt::format(
          "parameter {} of group {}: {} [{}]{}", p, g, c10::toString(parameter.scalar_type()),
          fmt::join(parameter.sizes(), ", "),
          parameter.is_cpu()
              ? ""
              : " on " + c10::DeviceTypeName(parameter.device().type(), /*lower_case=*/true)));
    }
  }
  return lines;
}

// Throws the same on every rank: a rank that threw alone would leave the others waiting.
void check_same(Group& group, const ParamGroups& groups) {
  constexpr char kFault = '!';
  const std::string fault = fault_of(groups);
  const std::string mine =
      fault.empty() ? fmt::format("{}", fmt::join(describe(groups), "\n")) : kFault + fault;
  const std::vector<std::string> texts = comm::gather_texts(group, mine);
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].front() == kFault) {
      throw UsageError("zero: rank {}: {}", rank, texts[rank].substr(1));
    }
  }
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) {
      continue;
    }
    const auto ours = base::split(texts[0], '\n');
    const auto theirs = base::split(texts[rank], '\n');
    size_t i = 0;
    while (i < ours.size() && i < theirs.size() && ours[i] == theirs[i]) {
      ++i;
    }
    throw UsageError(
        "zero: the parameters differ between ranks: rank 0 has {}, rank {} has {}; give every rank "
        "the same ones in the same order",
        i < ours.size() ? ours[i] : "nothing more", rank,
        i < theirs.size() ? theirs[i] : "nothing more");
  }
}

// A parameter and its place in the flat buffer.
struct Slot {
  at::Tensor parameter;
  int owner = 0;
  int64_t offset = 0;
  at::Tensor place;  // the parameter's shape, type and strides

  bool is_view() const { return place.const_data_ptr() == parameter.const_data_ptr(); }
};

// Parameters that were added together.
struct Chunk {
  at::Tensor flat;
  std::vector<Slot> slots;
  std::vector<int64_t> begins;  // of each rank's part
  std::vector<int64_t> bytes;
  bool is_gathered = false;  // else broadcast, part by part
};

at::Tensor place_in(const at::Tensor& flat, const Slot& slot) {
  const at::Tensor& parameter = slot.parameter;
  const at::Tensor bytes = flat.narrow(0, slot.offset, static_cast<int64_t>(parameter.nbytes()));
  const at::Tensor values = bytes.view(parameter.scalar_type());
  return parameter.is_non_overlapping_and_dense()
             ? values.as_strided(parameter.sizes(), parameter.strides())
             : values.view(parameter.sizes());
}

State clone_state(const State& state) {
  State copy;
  for (const auto& [key, value] : state) {
    copy[key] = value->clone();
  }
  return copy;
}

}  // namespace

struct ZeroShards::Impl {
  Impl(Group the_group, ZeroOptions the_options)
      : group(std::move(the_group)),
        options(the_options),
        bytes_owned(static_cast<size_t>(group.size()), 0) {}

  bool is_own(const void* key) const {
    const auto found = owners.find(key);
    return found != owners.end() && found->second == group.rank();
  }

  // Where a peer's state is loaded: its device's number is of no use here. None for the CPU.
  std::optional<at::Device> device_of_state() const {
    return chunks.empty() || chunks.front().flat.is_cpu()
               ? std::nullopt
               : std::optional(chunks.front().flat.device());
  }

  // Parameters that have no owner yet.
  std::vector<Slot> new_slots(const ParamGroups& groups) const {
    std::vector<Slot> slots;
    for (const auto& param_group : groups) {
      for (const at::Tensor& parameter : param_group.params()) {
        if (owners.count(parameter.unsafeGetTensorImpl()) == 0) {
          slots.push_back({.parameter = parameter});
        }
      }
    }
    return slots;
  }

  // The largest first, each to the rank with the least; ties by position and rank.
  void assign(std::vector<Slot>& slots) {
    std::vector<size_t> order(slots.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return slots[a].parameter.nbytes() > slots[b].parameter.nbytes();
    });
    for (const size_t i : order) {
      const auto least = std::min_element(bytes_owned.begin(), bytes_owned.end());
      *least += static_cast<int64_t>(slots[i].parameter.nbytes());
      slots[i].owner = static_cast<int>(least - bytes_owned.begin());
      owners[slots[i].parameter.unsafeGetTensorImpl()] = slots[i].owner;
    }
  }

  void add(const ParamGroups& groups) {
    check_same(group, groups);
    Chunk chunk;
    chunk.slots = new_slots(groups);
    assign(chunk.slots);
    if (group.size() > 1) {
      lay_out(chunk);
      chunks.push_back(std::move(chunk));
    }
    log::debug("ddp", "zero: {} parameters, {} bytes of them this rank's own", owners.size(),
               bytes_owned[static_cast<size_t>(group.rank())]);
  }

  void lay_out(Chunk& chunk) {
    chunk.bytes.assign(bytes_owned.size(), 0);
    for (Slot& slot : chunk.slots) {
      int64_t& end = chunk.bytes[static_cast<size_t>(slot.owner)];
      slot.offset = end;
      end += aligned(static_cast<int64_t>(slot.parameter.nbytes()));
    }
    const int64_t whole = std::accumulate(chunk.bytes.begin(), chunk.bytes.end(), int64_t{0});
    const int64_t widest = *std::max_element(chunk.bytes.begin(), chunk.bytes.end());
    chunk.is_gathered = widest * group.size() <= whole + whole / 4;
    if (chunk.is_gathered) {
      chunk.bytes.assign(bytes_owned.size(), widest);
    }
    chunk.begins.assign(bytes_owned.size(), 0);
    std::exclusive_scan(chunk.bytes.begin(), chunk.bytes.end(), chunk.begins.begin(), int64_t{0});
    chunk.flat = ddp::group_memory(
        group, chunk.begins.back() + chunk.bytes.back(),
        chunk.slots.empty() ? at::Device(at::kCPU) : chunk.slots.front().parameter.device());
    for (Slot& slot : chunk.slots) {
      slot.offset += chunk.begins[static_cast<size_t>(slot.owner)];
      slot.place = place_in(chunk.flat, slot);
      if (options.parameters_as_views) {
        slot.place.copy_(slot.parameter.detach());
        slot.parameter.set_data(slot.place);
      }
    }
  }

  void spread() {
    for (Chunk& chunk : chunks) {
      std::vector<at::Tensor> places;
      std::vector<at::Tensor> parameters;
      const auto list = [&](bool are_own) {
        places.clear();
        parameters.clear();
        for (const Slot& slot : chunk.slots) {
          if ((slot.owner == group.rank()) == are_own && !slot.is_view()) {
            places.push_back(slot.place);
            parameters.push_back(slot.parameter.detach());
          }
        }
      };
      list(/*are_own=*/true);
      ddp::copy_all(places, parameters);
      const auto part = [&](int rank) {
        const auto r = static_cast<size_t>(rank);
        return chunk.flat.narrow(0, chunk.begins[r], chunk.bytes[r]);
      };
      if (chunk.is_gathered) {
        group.all_gather(chunk.flat, part(group.rank()));
      } else {
        for (int rank = 0; rank < group.size(); ++rank) {
          if (chunk.bytes[static_cast<size_t>(rank)] > 0) {
            group.broadcast(part(rank), {.root = rank});
          }
        }
      }
      list(/*are_own=*/false);
      ddp::copy_all(parameters, places);
    }
  }

  Group group;
  ZeroOptions options;
  std::map<const void*, int> owners;  // by TensorImpl, as the optimizer's state
  std::vector<int64_t> bytes_owned;   // of parameters, by rank
  std::vector<Chunk> chunks;          // none in a group of one
  std::optional<State> whole_state;   // after consolidate(), on its rank
};

ZeroShards::ZeroShards(Group group, ZeroOptions options, const ParamGroups& groups)
    : impl_(std::make_unique<Impl>(std::move(group), options)) {
  impl_->add(groups);
}

ZeroShards::~ZeroShards() = default;

void ZeroShards::add(const ParamGroups& groups) {
  impl_->add(groups);
}

void ZeroShards::step(torch::optim::Optimizer& optimizer, const std::function<void()>& step_own) {
  ParamGroups& groups = optimizer.param_groups();
  if (!impl_->new_slots(groups).empty()) {  // added through a reference to the base class
    impl_->add(groups);
  }
  impl_->whole_state.reset();
  // The optimizer sees only this rank's parameters while it updates.
  struct Lent {
    explicit Lent(ParamGroups& the_groups) : groups(the_groups) {
      for (auto& param_group : groups) {
        all.push_back(param_group.params());
      }
    }
    ~Lent() {
      for (size_t g = 0; g < groups.size(); ++g) {
        groups[g].params() = std::move(all[g]);
      }
    }
    ParamGroups& groups;
    std::vector<std::vector<at::Tensor>> all;
  };
  {
    const Lent lent(groups);
    for (auto& param_group : groups) {
      std::erase_if(param_group.params(), [this](const at::Tensor& parameter) {
        return !impl_->is_own(parameter.unsafeGetTensorImpl());
      });
    }
    step_own();
  }
  impl_->spread();
}

void ZeroShards::forget_foreign_state(torch::optim::Optimizer& optimizer) {
  State own;
  for (auto& [key, value] : optimizer.state()) {
    if (impl_->is_own(key)) {
      own[key] = std::move(value);
    }
  }
  optimizer.state() = std::move(own);
}

void ZeroShards::consolidate(torch::optim::Optimizer& optimizer, int to,
                             const std::function<void(torch::serialize::OutputArchive&)>& save_own,
                             const std::function<void(torch::serialize::InputArchive&)>& load_own) {
  Group& group = impl_->group;
  if (to < 0 || to >= group.size()) {
    throw UsageError("zero: consolidate to rank {}, which is not in [0, {})", to, group.size());
  }
  impl_->whole_state.reset();
  std::string mine;
  if (group.rank() != to) {
    torch::serialize::OutputArchive archive;
    save_own(archive);
    archive.save_to([&mine](const void* data, size_t size) {
      mine.append(static_cast<const char*>(data), size);
      return size;
    });
  }
  const at::Tensor sizes = at::empty({group.size()}, at::kLong);
  group.all_gather(sizes, at::full({1}, static_cast<int64_t>(mine.size()), at::kLong));
  if (group.rank() != to) {
    const at::Tensor bytes = at::empty({static_cast<int64_t>(mine.size())}, at::kByte);
    std::memcpy(bytes.mutable_data_ptr(), mine.data(), mine.size());
    group.send(bytes, to);
    return;
  }
  // Loading maps a peer's state to this rank's tensors, and would overwrite options and state.
  const ParamGroups groups = optimizer.param_groups();
  State whole = clone_state(optimizer.state());
  State own;
  std::swap(own, optimizer.state());
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank == to) {
      continue;
    }
    const at::Tensor bytes = at::empty({sizes[rank].item<int64_t>()}, at::kByte);
    group.recv(bytes, rank);
    torch::serialize::InputArchive archive;
    archive.load_from(static_cast<const char*>(bytes.const_data_ptr()),
                      static_cast<size_t>(bytes.numel()), impl_->device_of_state());
    optimizer.state().clear();
    load_own(archive);
    for (auto& [key, value] : optimizer.state()) {
      whole[key] = std::move(value);
    }
  }
  std::swap(own, optimizer.state());
  for (size_t g = 0; g < groups.size(); ++g) {
    optimizer.param_groups()[g].set_options(groups[g].options().clone());
  }
  impl_->whole_state = std::move(whole);
}

void ZeroShards::save(torch::optim::Optimizer& optimizer, const std::function<void()>& save_whole) {
  if (impl_->group.size() == 1) {
    save_whole();
    return;
  }
  if (!impl_->whole_state) {
    throw UsageError(
        "zero: rank {} has only its own part of the state; call consolidate({}) on all ranks after "
        "the last step, then save here",
        impl_->group.rank(), impl_->group.rank());
  }
  std::swap(*impl_->whole_state, optimizer.state());
  try {
    save_whole();
  } catch (...) {
    std::swap(*impl_->whole_state, optimizer.state());
    throw;
  }
  std::swap(*impl_->whole_state, optimizer.state());
}

void ZeroShards::load(torch::optim::Optimizer& optimizer, const std::function<void()>& load_whole) {
  impl_->whole_state.reset();
  try {
    load_whole();
  } catch (const c10::Error& error) {
    forget_foreign_state(optimizer);
    throw UsageError("zero: the saved state does not fit this optimizer: {}",
                     error.what_without_backtrace());
  }
  forget_foreign_state(optimizer);
}

}  // namespace lockstep
