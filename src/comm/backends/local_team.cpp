#include "comm/backends/local_team.h"

#include <algorithm>

#include <ATen/ops/from_blob.h>

#include <lockstep/base/error.h>

namespace lockstep::comm {
namespace {

using namespace std::chrono_literals;

// Every rank is known to be there when the team meets, so a rank that is late cannot come.
constexpr auto kExchangeTime = 30s;

Operation from_shm(shm::Kind kind) {
  switch (kind) {
    case shm::Kind::AllReduce:
      return Operation::AllReduce;
    case shm::Kind::Broadcast:
      return Operation::Broadcast;
    case shm::Kind::AllGather:
      return Operation::AllGather;
    case shm::Kind::ReduceScatter:
      return Operation::ReduceScatter;
    case shm::Kind::AllToAll:
      return Operation::AllToAll;
    case shm::Kind::Barrier:
      return Operation::Barrier;
    case shm::Kind::Bind:
      return Operation::Allocate;
  }
  throw InternalError("an operation of unknown kind");
}

shm::Kind to_shm_kind(Operation operation) {
  switch (operation) {
    case Operation::AllReduce:
      return shm::Kind::AllReduce;
    case Operation::Broadcast:
      return shm::Kind::Broadcast;
    case Operation::AllGather:
      return shm::Kind::AllGather;
    case Operation::ReduceScatter:
      return shm::Kind::ReduceScatter;
    case Operation::AllToAll:
      return shm::Kind::AllToAll;
    case Operation::Barrier:
      return shm::Kind::Barrier;
    case Operation::Allocate:
      return shm::Kind::Bind;
    case Operation::Send:
    case Operation::Recv:
    case Operation::Connect:
      break;
  }
  throw InternalError("not an operation of a team");
}

constexpr std::pair<at::ScalarType, shm::DataType> kTypes[] = {
    {at::kFloat, shm::DataType::Float32}, {at::kDouble, shm::DataType::Float64},
    {at::kHalf, shm::DataType::Float16},  {at::kBFloat16, shm::DataType::BFloat16},
    {at::kChar, shm::DataType::Int8},     {at::kByte, shm::DataType::UInt8},
    {at::kInt, shm::DataType::Int32},     {at::kLong, shm::DataType::Int64},
    {at::kBool, shm::DataType::Bool}};

}  // namespace

CallLabel label_of(const shm::CallId& call) {
  CallLabel label{.operation = from_shm(call.kind),
                  .reduce = static_cast<ReduceOp>(call.reduction),
                  .count = static_cast<int64_t>(call.count),
                  .peer = call.root,
                  .on_device = call.on_device,
                  .sequence = call.sequence};
  for (const auto& [ours, theirs] : kTypes) {
    if (theirs == call.type) {
      label.type = ours;
    }
  }
  return label;
}

shm::DataType to_shm(at::ScalarType type) {
  for (const auto& [ours, theirs] : kTypes) {
    if (ours == type) {
      return theirs;
    }
  }
  throw InternalError("a tensor of unknown type");
}

shm::Reduction to_shm(ReduceOp op) {
  static_assert(static_cast<int>(ReduceOp::BitOr) == static_cast<int>(shm::Reduction::BitOr) &&
                static_cast<int>(ReduceOp::Average) == static_cast<int>(shm::Reduction::Average));
  return static_cast<shm::Reduction>(op);
}

shm::CallId to_shm(const CallLabel& label) {
  return {.kind = to_shm_kind(label.operation),
          .type = to_shm(label.type),
          .reduction = to_shm(label.reduce),
          .root = label.peer,
          .count = static_cast<uint64_t>(label.count),
          .on_device = label.on_device,
          .sequence = label.sequence};
}

LocalTeam::LocalTeam(std::shared_ptr<Membership> membership, std::vector<int> ranks,
                     const Call& connect)
    : membership_(std::move(membership)), ranks_(std::move(ranks)) {
  const auto self = std::find(ranks_.begin(), ranks_.end(), membership_->rank());
  LOCKSTEP_CHECK(self != ranks_.end(), "rank {} is not of its own team", membership_->rank());
  rank_ = static_cast<int>(self - ranks_.begin());
  const auto decline = [&](int rank, const std::string& problem) {
    membership_->check(connect);
    const std::string text = fmt::format("rank {}: {}", rank, problem);
    throw IoError(membership_->decline(text, connect.deadline));
  };
  try {
    meet(connect);
  } catch (const shm::Refused& refused) {
    decline(ranks_[static_cast<size_t>(refused.rank())], refused.problem());
  } catch (const Error& error) {
    decline(membership_->rank(), error.what());
  }
}

void LocalTeam::meet(const Call& connect) {
  const std::string place = fmt::format("shm/{}", ranks_.front());
  Call lookup = connect;
  lookup.deadline = connect.deadline.earlier(base::Deadline::after(kExchangeTime));
  exchange_ = std::make_unique<shm::FdExchange>(
      shm::FdExchangeOptions{.rank = rank_,
                             .size = size(),
                             .secret = membership_->store().client()->secret(),
                             .purpose = membership_->key(place)});
  membership_->on_failure([this] { exchange_->interrupt(); });
  if (size() > 1 && rank_ == 0) {
    membership_->store().client()->set(membership_->key(place), exchange_->address(),
                                       lookup.deadline);
    exchange_->accept_all(lookup.deadline);
  } else if (rank_ != 0) {
    exchange_->join(membership_->await_offer(place, lookup), lookup.deadline);
  }
  share_arenas(lookup.deadline);
  membership_->on_failure([this] { interrupt(); });
}

void LocalTeam::share_arenas(base::Deadline deadline) {
  const shm::ArenaLayout layout(size());
  arena_ = shm::Segment::create(layout.bytes);
  peer_arenas_.resize(ranks_.size());
  std::vector<std::byte*> arenas(ranks_.size(), arena_->data());
  const auto take = [&](int rank, const base::UniqueFd& fd) {
    const auto index = static_cast<size_t>(rank);
    peer_arenas_[index] = std::make_unique<shm::PeerSegment>(fd);
    if (peer_arenas_[index]->bytes() != layout.bytes) {
      throw UsageError(
          "shared memory: rank {} has an arena of {} bytes, this one of {}; all ranks "
          "must run the same version of lockstep",
          ranks_[index], peer_arenas_[index]->bytes(), layout.bytes);
    }
    arenas[index] = peer_arenas_[index]->data();
  };
  exchange_->exchange({.fd = arena_->fd(), .problem = ""}, take, deadline);
  arena_->close_fd();
  team_ = std::make_unique<shm::Team>(rank_, arenas);
  messenger_ = std::make_shared<shm::Messenger>(rank_, arenas);
}

template <typename Body>
void LocalTeam::guard(const Call& call, Body body) {
  try {
    body();
  } catch (const shm::Stopped& stopped) {
    if (stopped.why == shm::Stopped::Why::Deadline) {
      membership_->time_out(call);
    }
    membership_->check(call);
    throw InternalError("{}: interrupted, but the group has not failed", call.text());
  } catch (const shm::Disagreement& found) {
    const auto call_of = [&](int rank, const shm::CallId& id) {
      return RankCall{.rank = ranks_[static_cast<size_t>(rank)],
                      .signature = label_of(id).signature(),
                      .sequence = id.sequence};
    };
    membership_->fail_call(
        call, {Failure::Kind::Desync,
               disagreement_text(call_of(0, found.of_rank_0), call_of(found.rank, found.theirs))});
  } catch (const shm::SplitMismatch& found) {
    membership_->fail_call(call, {Failure::Kind::Desync,
                                  fmt::format("rank {} sends rank {} {} elements, which expects {}",
                                              ranks_[static_cast<size_t>(found.rank)],
                                              membership_->rank(), found.sent, found.expected)});
  } catch (const shm::Departed& found) {
    membership_->blame(ranks_[static_cast<size_t>(found.rank)]);
    membership_->fail_call(call, {Failure::Kind::PeerLost,
                                  fmt::format("rank {} has left the group and will not call it",
                                              ranks_[static_cast<size_t>(found.rank)])});
  }
}

void LocalTeam::run(shm::Task task, const Call& call) {
  task.part_of = to_shm(call.label());
  task.deadline = call.deadline;
  guard(call, [&] { team_->run(task); });
}

void LocalTeam::reduce_exchange(shm::Task task, int num_slices, shm::Exchange& exchange,
                                const Call& call) {
  task.part_of = to_shm(call.label());
  task.deadline = call.deadline;
  guard(call, [&] { team_->reduce_exchange(task, num_slices, exchange); });
}

// A death during the exchange shows as a socket that ends, and moments later as the group's
// failure.
void LocalTeam::bind(const std::shared_ptr<shm::Segment>& segment, const std::string& problem,
                     const Call& call) {
  std::vector<std::shared_ptr<shm::PeerSegment>> peers(ranks_.size());
  try {
    exchange_->exchange(
        {.fd = segment ? segment->fd() : -1, .problem = problem},
        [&](int rank, const base::UniqueFd& fd) {
          peers[static_cast<size_t>(rank)] = std::make_shared<shm::PeerSegment>(fd);
        },
        call.deadline);
  } catch (const TimeoutError&) {
    membership_->time_out(call);
  } catch (const shm::Refused& refused) {
    refuse(refused, call);
  } catch (const IoError& error) {
    membership_->transport_failed(call, error.what());
  }
  segment->close_fd();
  shm::Binding binding{.own = segment->data(), .bytes = segment->bytes(), .owner = segment};
  for (size_t rank = 0; rank < peers.size(); ++rank) {
    if (peers[rank] && peers[rank]->bytes() != segment->bytes()) {
      membership_->fail_call(
          call, {Failure::Kind::Desync,
                 fmt::format("rank {} binds {} bytes, rank {} {}", ranks_[rank],
                             peers[rank]->bytes(), membership_->rank(), segment->bytes())});
    }
    binding.addresses.push_back(peers[rank] ? peers[rank]->data() : segment->data());
    binding.keep.push_back(std::move(peers[rank]));
  }
  team_->sweep();
  team_->bind(std::move(binding));
}

// Every rank of the team knows. Those of other nodes do not, and would go on without them.
void LocalTeam::refuse(const shm::Refused& refused, const Call& call) {
  const std::string text =
      fmt::format("rank {}: {}", ranks_[static_cast<size_t>(refused.rank())], refused.problem());
  if (size() < membership_->size()) {
    membership_->abandon(text);
  }
  throw IoError("{}: {}", call.text(), text);
}

// A rank that has no memory to give comes to the exchange all the same, to say so.
at::Tensor LocalTeam::allocate(int64_t bytes, const Call& call) {
  std::shared_ptr<shm::Segment> segment;
  std::string problem;
  try {
    segment = shm::Segment::create(static_cast<size_t>(bytes));
  } catch (const Error& error) {
    problem = error.what();
  }
  run({.kind = shm::Kind::Bind}, call);
  bind(segment, problem, call);
  return at::from_blob(
      segment->data(), {bytes}, [segment](void*) {}, at::kByte);
}

std::vector<at::Tensor> LocalTeam::views(const at::Tensor& memory) const {
  const auto parts = team_->parts_of(memory.const_data_ptr(), memory.nbytes());
  if (parts.empty()) {
    throw UsageError(
        "local_views: the tensor ({} bytes) is not in memory of this group's allocate()",
        memory.nbytes());
  }
  std::vector<at::Tensor> views;
  for (const shm::SharedPart& part : parts) {
    // Its own part is the tensor itself, which keeps the segment.
    views.push_back(
        part.keep ? at::from_blob(
                        part.data, memory.sizes(), [keep = part.keep](void*) {}, memory.options())
                  : memory);
  }
  return views;
}

std::shared_ptr<shm::Segment> LocalTeam::segment_of(const at::Tensor& tensor) {
  auto segment = shm::Segment::find(tensor.const_data_ptr(), tensor.nbytes());
  if (!segment || segment->data() != tensor.const_data_ptr() ||
      segment->bytes() != tensor.nbytes()) {
    throw UsageError(
        "rebind: the tensor ({} bytes) is not the whole of what a group's allocate() returned",
        tensor.nbytes());
  }
  return segment;
}

void LocalTeam::rebind(const at::Tensor& tensor, const Call& call) {
  const auto segment = segment_of(tensor);
  run({.kind = shm::Kind::Bind}, call);
  std::string problem;
  try {
    segment->renew();
  } catch (const Error& error) {
    problem = error.what();
  }
  bind(segment, problem, call);
}

void LocalTeam::interrupt() noexcept {
  exchange_->interrupt();
  team_->interrupt();
}

}  // namespace lockstep::comm
