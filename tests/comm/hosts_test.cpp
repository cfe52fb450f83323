#include "comm/start/hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

using ::testing::ElementsAre;

comm::Host host(const std::string& id, const std::string& local, const std::string& store) {
  return {.id = id, .name = "a", .local = local, .store = store, .interface = ""};
}

TEST(Hosts, NodesAreInTheOrderOfTheirFirstRank) {
  const comm::NodeMap map = comm::map_nodes({host("b n u", "", ""), host("a n u", "", ""),
                                             host("b n u", "", ""), host("b n u x", "", "")});
  EXPECT_THAT(map.node_of, ElementsAre(0, 1, 0, 2));
  EXPECT_THAT(map.ranks, ElementsAre(ElementsAre(0, 2), ElementsAre(1), ElementsAre(3)));
  EXPECT_EQ(map.fewest_ranks(), 1u);
  EXPECT_FALSE(map.is_even());
  EXPECT_FALSE(map.is_in_blocks());
}

TEST(Hosts, LoopbackIsGoodEnoughOnOneNetwork) {
  // Two emulated nodes of one machine: the node id differs, the network does not.
  const std::vector<comm::Host> hosts = {host("boot net u n0", "127.0.0.1", "127.0.0.1"),
                                         host("boot net u n1", "127.0.0.1", "127.0.0.1")};
  EXPECT_EQ(comm::reachable_address(hosts, 0), "127.0.0.1");
}

TEST(Hosts, TheStoresHostIsReachedAsTheOthersSeeIt) {
  // Rank 0 hosts the store, and its own name is 127.0.1.1 to it, as on Debian.
  const std::vector<comm::Host> hosts = {host("boot0 net0 u", "127.0.0.1", "127.0.1.1"),
                                         host("boot1 net1 u", "10.0.0.2", "10.0.0.1")};
  EXPECT_EQ(comm::reachable_address(hosts, 0), "10.0.0.1");
  EXPECT_EQ(comm::reachable_address(hosts, 1), "10.0.0.2");
}

TEST(Hosts, TheUsersInterfaceWins) {
  std::vector<comm::Host> hosts = {host("boot0 net0 u", "127.0.0.1", "127.0.1.1"),
                                   host("boot1 net1 u", "10.0.0.2", "10.0.0.1")};
  hosts[0].interface = "192.168.7.1";
  EXPECT_EQ(comm::reachable_address(hosts, 0), "192.168.7.1");
}

TEST(Hosts, NobodyReachesALoopbackAddressFromElsewhere) {
  const std::vector<comm::Host> hosts = {host("boot0 net0 u", "127.0.0.1", "127.0.0.1"),
                                         host("boot1 net1 u", "10.0.0.2", "127.0.0.1")};
  EXPECT_THROW(comm::reachable_address(hosts, 0), UsageError);
}

TEST(Hosts, SurviveTheJourney) {
  const comm::Host a = host("boot net u", "10.0.0.2", "10.0.0.1");
  const comm::Host b = comm::Host::from_json(a.to_json());
  EXPECT_EQ(b.id, a.id);
  EXPECT_EQ(b.local, a.local);
  EXPECT_EQ(b.store, a.store);
}

}  // namespace
}  // namespace lockstep
