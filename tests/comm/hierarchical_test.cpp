// Ranks on three and four nodes, not equally many on each: right results, no more bytes between the
// nodes than promised, and no memory that two nodes share.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <set>
#include <sstream>
#include <sys/socket.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "comm/every_backend.h"
#include "comm/oracle.h"

namespace lockstep {
namespace {

using testing_support::input_of;
using testing_support::is_reducible;
using testing_support::rank_argument;
using testing_support::reduced;
using testing_support::run_ranks;

// Ranks 0, 0, 1, 1, 2, 2 | 0, 0, 1, 2, 2 is 0, 0, 1, 1, 2 | ...: as even as can be.
struct Places {
  int world;
  int nodes;
};
constexpr Places kPlaces[] = {{6, 3}, {8, 4}, {5, 3}, {8, 3}, {7, 4}};
constexpr at::ScalarType kSomeTypes[] = {at::kFloat, at::kBFloat16, at::kChar, at::kLong};

void reduce_every_way(Group& group) {
  for (const int64_t numel : {0, 1, 1001, 100'003}) {
    for (const at::ScalarType type : kSomeTypes) {
      for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average, ReduceOp::Max}) {
        if (!is_reducible(type, op)) {
          continue;
        }
        const at::Tensor x = input_of(group.rank(), numel, type, 0, op);
        group.all_reduce(x, {.op = op});
        EXPECT_TRUE(x.equal(reduced(group.size(), numel, type, op)))
            << c10::toString(type) << ", " << numel << ", op " << static_cast<int>(op);
      }
    }
    const at::Tensor part = at::empty({numel});
    group.reduce_scatter(part, input_of(group.rank(), numel * group.size(), at::kFloat));
    EXPECT_TRUE(
        part.equal(reduced(group.size(), numel, at::kFloat, ReduceOp::Sum, numel * group.rank())))
        << "part of " << numel;
  }
}

void move_every_way(Group& group) {
  for (const int64_t numel : {1, 1001, 100'003}) {
    for (int root = 0; root < group.size(); ++root) {
      const at::Tensor x = input_of(group.rank(), numel, at::kInt);
      group.broadcast(x, {.root = root});
      EXPECT_TRUE(x.equal(input_of(root, numel, at::kInt))) << "root " << root << ", " << numel;
    }
    const at::Tensor all = at::empty({group.size(), numel});
    group.all_gather(all, input_of(group.rank(), numel, at::kFloat));
    const at::Tensor from_all = at::empty({group.size(), numel});
    group.all_to_all(
        from_all,
        input_of(group.rank(), numel * group.size(), at::kFloat).view({group.size(), numel}));
    for (int rank = 0; rank < group.size(); ++rank) {
      EXPECT_TRUE(all[rank].equal(input_of(rank, numel, at::kFloat))) << rank;
      EXPECT_TRUE(from_all[rank].equal(input_of(rank, numel, at::kFloat, numel * group.rank())))
          << rank;
    }
  }
}

TEST(ManyNodes, ReduceAndMoveAsOneDoes) {
  for (const Places& places : kPlaces) {
    SCOPED_TRACE(::testing::Message() << places.world << " ranks on " << places.nodes << " nodes");
    for (const testing_support::RankBody body : {reduce_every_way, move_every_way}) {
      run_ranks(places.world, body,
                {.nodes = places.nodes, .backend = BackendChoice::Hierarchical});
    }
  }
}

// What the kernel has sent for this process's TCP connections that live now.
uint64_t socket_bytes_sent() {
  uint64_t sum = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename().string());
    tcp_info info{};
    socklen_t size = sizeof info;
    if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0) {
      sum += info.tcpi_bytes_sent;
    }
  }
  return sum;
}

int64_t sum_over_ranks(Group& group, uint64_t mine) {
  const at::Tensor sum = at::full({1}, static_cast<int64_t>(mine), at::kLong);
  group.all_reduce(sum);
  return sum.item<int64_t>();
}

// Argument: the number of nodes, and the bytes of an element on the wire.
void expect_least_bytes(Group& group) {
  std::istringstream words(rank_argument());
  int nodes = 0;
  int wire_bytes = 0;
  words >> nodes >> wire_bytes;
  const int64_t numel = 3 << 20;
  const at::Tensor x = at::ones({numel});
  group.all_reduce(x);  // connections and scratch memory exist
  const uint64_t counted_before = group.traffic().network_bytes_sent;
  group.barrier();
  const uint64_t sent_before = socket_bytes_sent();
  group.all_reduce(x);
  const uint64_t counted = group.traffic().network_bytes_sent - counted_before;
  group.barrier();  // all has arrived
  const uint64_t sent = socket_bytes_sent() - sent_before;
  EXPECT_TRUE(x.equal(at::full({numel}, static_cast<float>(group.size() * group.size()))));
  // Each node sends 2 (H - 1) / H of the bytes.
  const double expected = 2.0 * (nodes - 1) * static_cast<double>(numel * wire_bytes);
  EXPECT_NEAR(static_cast<double>(sum_over_ranks(group, counted)), expected, 0.02 * expected);
  EXPECT_NEAR(static_cast<double>(sum_over_ranks(group, sent)), expected, 0.02 * expected);
}

TEST(ManyNodes, SendTheLeastBytesAndCountWhatTheySend) {
  for (const Places& places : kPlaces) {
    SCOPED_TRACE(::testing::Message() << places.world << " ranks on " << places.nodes << " nodes");
    run_ranks(places.world, expect_least_bytes,
              {.nodes = places.nodes,
               .backend = BackendChoice::Hierarchical,
               .argument = fmt::format("{} 4", places.nodes)});
  }
}

TEST(ManyNodes, SmallTypesOnTheWireHalveTheBytes) {
  for (const char* type : {"float16", "bfloat16"}) {
    SCOPED_TRACE(type);
    run_ranks(6, expect_least_bytes,
              {.nodes = 3,
               .backend = BackendChoice::Hierarchical,
               .argument = "3 2",
               .env = {std::string("LOCKSTEP_WIRE=") + type}});
  }
}

// A sum may lose digits; a maximum is one of the numbers that were given.
TEST(ManyNodes, WhatIsNoSumKeepsItsDigitsOnTheWire) {
  for (const char* type : {"float16", "bfloat16"}) {
    SCOPED_TRACE(type);
    run_ranks(4,
              [](Group& group) {
                const at::Tensor values = at::arange(1001, at::kFloat) / 3;
                const at::Tensor x = values + group.rank();
                group.all_reduce(x, {.op = ReduceOp::Max});
                EXPECT_TRUE(x.equal(values + (group.size() - 1)));
              },
              {.nodes = 2,
               .backend = BackendChoice::Hierarchical,
               .env = {std::string("LOCKSTEP_WIRE=") + type}});
  }
}

// Device and inode of every mapping that this process could share with others, one per line.
std::set<std::string> shared_mappings() {
  std::set<std::string> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string range, permissions, offset, device, inode;
    words >> range >> permissions >> offset >> device >> inode;
    if (permissions == "rw-s") {
      found.insert(device + ":" + inode);
    }
  }
  return found;
}

TEST(ManyNodes, ShareNoMemory) {
  run_ranks(4,
            [](Group& group) {
              const at::Tensor x = group.allocate(4 * 100'000).view(at::kFloat);
              x.fill_(1);
              group.all_reduce(x);
              EXPECT_TRUE(x.equal(at::full({100'000}, 4.0f)));
              Store store = group.store();
              const std::set<std::string> mine = shared_mappings();
              std::string text;
              for (const std::string& mapping : mine) {
                text += mapping + " ";
              }
              store.set(fmt::format("mappings/{}", group.rank()), text);
              for (int rank = 0; rank < group.size(); ++rank) {
                std::istringstream words(store.get(fmt::format("mappings/{}", rank)));
                int num_shared = 0;
                for (std::string mapping; words >> mapping;) {
                  num_shared += mine.contains(mapping) ? 1 : 0;
                }
                if (rank / 2 == group.rank() / 2) {
                  EXPECT_GT(num_shared, 0) << "the node's rank " << rank;
                } else {
                  EXPECT_EQ(num_shared, 0) << "rank " << rank << " of the other node";
                }
              }
            },
            {.nodes = 2});
}

}  // namespace
}  // namespace lockstep
