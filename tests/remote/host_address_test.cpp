#include "remote/host_address.h"

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "support/job.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

std::string own_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

TEST(HostAddress, KnowsThisHostByItsNamesAndAddresses) {
  for (const std::string& name :
       std::vector<std::string>{"localhost", "127.0.0.1", "127.0.1.1", own_name()}) {
    EXPECT_TRUE(remote::is_this_host({.name = name})) << name;
  }
  EXPECT_FALSE(remote::is_this_host({.name = "192.0.2.7"}));
  EXPECT_FALSE(remote::is_this_host({.name = "no-such-host.invalid"}));
  EXPECT_FALSE(remote::is_this_host({.name = "localhost", .user = "nobody-of-that-name"}));
}

TEST(HostAddress, TowardsThisHostIsLoopback) {
  EXPECT_EQ(remote::local_address_towards("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(remote::interface_of("127.0.0.1"), "lo");
  EXPECT_EQ(remote::address_of_interface("lo"), "127.0.0.1");
  EXPECT_EQ(remote::interface_of("192.0.2.7"), "");
  EXPECT_EQ(remote::address_of_interface("none0"), "");
}

TEST(HostAddress, RendezvousOnThisHostAloneIsOnLoopback) {
  EXPECT_EQ(remote::rendezvous_address({{.name = "localhost"}, {.name = own_name()}}, {}),
            "127.0.0.1");
}

TEST(HostAddress, NamesThatOnlySshKnowsAreAskedOfIt) {
  const test::TempFolder folder;
  const auto refusal = [&](const std::string& says) {
    const std::string ssh = folder.file("ssh", "#!/bin/sh\n" + says, 0755);
    try {
      return remote::rendezvous_address({{.name = "alias.invalid"}}, {.program = {ssh}});
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_THAT(refusal("echo user me; echo hostname 127.0.0.1"),
              HasSubstr("alias.invalid is reached through 127.0.0.1, an address that no other host "
                        "can reach (a tunnel?)"));
  EXPECT_THAT(refusal("exit 255"),
              HasSubstr("cannot tell by which address of this host alias.invalid is reached"));
  EXPECT_THAT(refusal("exit 255"), HasSubstr("--local-addr"));
}

}  // namespace
}  // namespace lockstep
