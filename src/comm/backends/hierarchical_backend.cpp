#include "comm/backends/hierarchical_backend.h"

#include <algorithm>
#include <cstring>

#include <lockstep/base/error.h>

#include "comm/backends/gloo_backend.h"
#include "comm/backends/rail.h"
#include "comm/membership.h"

namespace lockstep::comm {
namespace {

// Ordinary memory is copied in pieces of at most this many bytes of a tensor.
constexpr size_t kChunkBytes = 32 << 20;

// Between the reduction in the node and the distribution in it.
class RailExchange : public shm::Exchange {
 public:
  RailExchange(Rail& rail, const Call& call, shm::DataType type, shm::Reduction reduction)
      : rail_(rail), call_(call), type_(type), reduction_(reduction) {}

  void exchange(const shm::ExchangeSlice& slice) override {
    rail_.all_reduce(call_, {.node = slice, .type = type_, .reduction = reduction_});
  }

 private:
  Rail& rail_;
  const Call& call_;
  const shm::DataType type_;
  const shm::Reduction reduction_;
};

// A node that has no rail at this rank exchanges nothing.
class NoExchange : public shm::Exchange {
 public:
  void exchange(const shm::ExchangeSlice& /*slice*/) override {
    throw InternalError("a rank without a rail was given a slice");
  }
};

class HierarchicalBackend : public TeamBackend {
 public:
  explicit HierarchicalBackend(HierarchicalOptions options)
      : TeamBackend(std::move(options.team), [this](const Call& call) { execute(call); }),
        nodes_(std::move(options.nodes)),
        address_(std::move(options.address)),
        num_rails_(static_cast<int>(nodes_.fewest_ranks())) {
    flat_ = connect({.rank = rank(), .size = size(), .is_part = true}, "flat/", options.connect);
    if (team_.rank() < num_rails_) {
      connect_rail(options.connect);
    }
  }
  ~HierarchicalBackend() override { end(); }

  std::string name() const override { return "hierarchical"; }

  Traffic traffic() const override {
    return {.network_bytes_sent = flat_bytes_.load() + (rail_ ? rail_->bytes_sent() : 0)};
  }

  std::shared_ptr<WorkState> start(Call call) override {
    membership_->started(call);
    if (!call.is_message()) {
      return queue_.push(std::move(call));
    }
    const auto& ranks = team_.ranks();
    const auto peer = std::find(ranks.begin(), ranks.end(), call.peer);
    if (peer != ranks.end()) {
      return messages_.start(std::move(call), static_cast<int>(peer - ranks.begin()));
    }
    if (call.operation == Operation::Send) {
      flat_bytes_ += call.input.nbytes();
    }
    return flat_->start(std::move(call));
  }

 private:
  std::shared_ptr<Backend> connect(GlooOptions::Place place, const std::string& prefix,
                                   const Call& call) const {
    return make_gloo_backend({.membership = membership_,
                              .group = options_.group,
                              .place = place,
                              .prefix = prefix,
                              .address = address_,
                              .timeout = options_.timeout,
                              .connect = call});
  }

  void connect_rail(const Call& call) {
    std::vector<int> ranks;
    for (const auto& node : nodes_.ranks) {
      ranks.push_back(node[static_cast<size_t>(team_.rank())]);
    }
    auto gloo = connect({.rank = own_node(), .size = nodes_.num_nodes(), .is_part = true},
                        fmt::format("rail{}/", team_.rank()), call);
    rail_ = std::make_unique<Rail>(RailOptions{.membership = membership_,
                                               .gloo = std::move(gloo),
                                               .ranks = std::move(ranks),
                                               .wire = options_.group.wire});
  }

  int own_node() const { return nodes_.node_of[static_cast<size_t>(rank())]; }

  void execute(const Call& call) {
    switch (call.operation) {
      case Operation::AllReduce:
        all_reduce(call, call.output);
        return;
      case Operation::ReduceScatter:
        reduce_scatter(call);
        return;
      case Operation::Broadcast:
        broadcast(call);
        return;
      case Operation::Barrier:
        compare_calls(call);
        team_.run({.kind = shm::Kind::Barrier}, call);  // until rank 0 is back from the others
        return;
      case Operation::AllGather:
      case Operation::AllToAll:
        compare_calls(call);
        count_flat(call);
        flat_->run(call);
        return;
      default:
        throw InternalError("not a collective: {}", call.text());
    }
  }

  // Inside the node, then between nodes.
  void compare_calls(const Call& call) override {
    team_.run({.kind = shm::Kind::Barrier}, call);
    if (team_.rank() == 0) {
      rail_->compare(call);
    }
  }

  void all_reduce(const Call& call, const at::Tensor& tensor) {
    const size_t element = tensor.element_size();
    const size_t chunk = kChunkBytes / element;
    const auto count = static_cast<size_t>(tensor.numel());
    auto* const data = static_cast<std::byte*>(tensor.mutable_data_ptr());
    size_t begin = 0;
    do {  // an empty tensor synchronises the ranks too
      const size_t length = std::min(chunk, count - begin);
      reduce_chunk(call, tensor.scalar_type(), data + begin * element, length);
      begin += length;
    } while (begin < count);
  }

  void reduce_chunk(const Call& call, at::ScalarType type, std::byte* data, size_t count) {
    const size_t bytes = count * c10::elementSize(type);
    ensure_scratch(bytes, call);
    const bool is_bound = team_.is_bound(data, bytes);
    std::byte* const place = is_bound ? data : static_cast<std::byte*>(scratch_.mutable_data_ptr());
    if (!is_bound && bytes > 0) {
      std::memcpy(place, data, bytes);
    }
    const shm::Reduction reduction = to_shm(call.reduce);
    const shm::Task task{.kind = shm::Kind::AllReduce,
                         .type = to_shm(type),
                         .reduction = reduction,
                         .count = count,
                         .input = place,
                         .output = place,
                         .divisor = size()};
    if (rail_) {
      RailExchange exchange(*rail_, call, shm::accumulator_of(task.type, reduction),
                            reduction == shm::Reduction::Average ? shm::Reduction::Sum : reduction);
      team_.reduce_exchange(task, num_rails_, exchange, call);
    } else {
      NoExchange none;
      team_.reduce_exchange(task, num_rails_, none, call);
    }
    if (!is_bound && bytes > 0) {
      std::memcpy(data, place, bytes);
    }
  }

  // Grows with the largest tensor so far, on all ranks of the node alike.
  void ensure_scratch(size_t bytes, const Call& call) {
    constexpr size_t kLeastBytes = 64 << 10;
    const size_t have = scratch_.defined() ? scratch_.nbytes() : 0;
    if (bytes > have || have == 0) {
      size_t wanted = std::max(kLeastBytes, have);
      while (wanted < bytes) {
        wanted *= 2;
      }
      scratch_ = team_.allocate(static_cast<int64_t>(wanted), call);
    }
  }

  // The whole sum, of which this rank keeps its part: the same order and bits as all_reduce.
  void reduce_scatter(const Call& call) {
    const at::Tensor whole = call.input.detach().flatten().clone();
    all_reduce(call, whole);
    const size_t bytes = call.output.nbytes();
    if (bytes > 0) {
      std::memcpy(call.output.mutable_data_ptr(),
                  static_cast<const std::byte*>(whole.const_data_ptr()) +
                      static_cast<size_t>(rank()) * bytes,
                  bytes);
    }
  }

  // The root's node gets it first, each rail carries its slice to the other nodes, and each of
  // these hands it to its ranks.
  void broadcast(const Call& call) {
    const int root_node = nodes_.node_of[static_cast<size_t>(call.peer)];
    auto* const data = static_cast<std::byte*>(call.output.mutable_data_ptr());
    const at::Tensor flat = call.output.view({-1});
    if (own_node() == root_node) {
      const auto& ranks = team_.ranks();
      const auto root = std::find(ranks.begin(), ranks.end(), call.peer) - ranks.begin();
      team_.run({.kind = shm::Kind::Broadcast,
                 .type = to_shm(call.output.scalar_type()),
                 .root = static_cast<int>(root),
                 .count = static_cast<size_t>(call.output.numel()),
                 .input = data,
                 .output = data},
                call);
    } else {
      team_.run({.kind = shm::Kind::Barrier}, call);
    }
    const int64_t slice = (call.output.numel() + num_rails_ - 1) / num_rails_;
    const auto begin = [&](int rail) { return std::min(rail * slice, call.output.numel()); };
    if (rail_) {
      rail_->broadcast(call, flat.slice(0, begin(team_.rank()), begin(team_.rank() + 1)),
                       root_node);
    }
    if (own_node() == root_node) {
      return;
    }
    for (int rail = 0; rail < num_rails_; ++rail) {
      const auto offset = static_cast<size_t>(begin(rail)) * call.output.element_size();
      team_.run({.kind = shm::Kind::Broadcast,
                 .type = to_shm(call.output.scalar_type()),
                 .root = rail,
                 .count = static_cast<size_t>(begin(rail + 1) - begin(rail)),
                 .input = data + offset,
                 .output = data + offset},
                call);
    }
  }

  // What Gloo sends to other nodes for this rank: all_gather goes round a ring, all_to_all
  // straight.
  void count_flat(const Call& call) {
    if (call.operation == Operation::AllGather) {
      const auto next = static_cast<size_t>((rank() + 1) % size());
      if (nodes_.node_of[next] != own_node()) {
        flat_bytes_ += static_cast<uint64_t>(size() - 1) * call.input.nbytes();
      }
      return;
    }
    for (size_t to = 0; to < call.input_splits.size(); ++to) {
      if (nodes_.node_of[to] != own_node()) {
        flat_bytes_ += static_cast<uint64_t>(call.input_splits[to]) * call.input.element_size();
      }
    }
  }

  const NodeMap nodes_;
  const std::string address_;
  const int num_rails_;
  std::shared_ptr<Backend> flat_;  // all ranks: for what the rails do not serve
  std::unique_ptr<Rail> rail_;     // null on ranks beyond the rails
  at::Tensor scratch_;
  std::atomic<uint64_t> flat_bytes_{0};
};

}  // namespace

std::shared_ptr<Backend> make_hierarchical_backend(HierarchicalOptions options) {
  return std::make_shared<HierarchicalBackend>(std::move(options));
}

}  // namespace lockstep::comm
