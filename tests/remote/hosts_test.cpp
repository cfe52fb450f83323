#include "remote/hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "support/job.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> texts(const std::vector<remote::HostEntry>& hosts) {
  std::vector<std::string> texts;
  texts.reserve(hosts.size());
  for (const remote::HostEntry& host : hosts) {
    texts.push_back(fmt::format("{} {}", host.text(), host.slots));
  }
  return texts;
}

template <class Body>
std::string refusal(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(Hosts, OfAList) {
  EXPECT_THAT(
      texts(remote::parse_hosts("a,b:4,user@c,me@d.example:2,[fe80::1%eth0]:3,u@[::1],10.0.0.7")),
      ElementsAre("a 0", "b 4", "user@c 0", "me@d.example 2", "fe80::1%eth0 3", "u@::1 0",
                  "10.0.0.7 0"));
}

TEST(Hosts, NamedTwiceHaveTheSlotsOfBoth) {
  EXPECT_THAT(texts(remote::parse_hosts("a,b,a,a:4")), ElementsAre("a 6", "b 0"));
}

TEST(Hosts, ThatAreNoneAreRefused) {
  for (const char* list : {"",       "a,",    ",a",   "-oProxyCommand=x",
                           "a b",    "a;b",   "$(x)", "a:0",
                           "a:4x",   "a:",    "a:-1", "a:99999",
                           "::1",    "a:1:2", "[::1", "[]",
                           "[::1]4", "@a",    "-u@a", "u v@a",
                           "u@",     "a@b@c", "a\n"}) {
    EXPECT_THAT(refusal([&] { remote::parse_hosts(list); }), HasSubstr("--hosts: ")) << list;
  }
  EXPECT_THAT(refusal([] { remote::parse_hosts("x@a,y@a"); }),
              HasSubstr("y@a is there already as x@a; a host has one user"));
  EXPECT_THAT(refusal([] { remote::parse_hosts("a:1000,a:25"); }),
              HasSubstr("a has 1025 slots now, the limit is 1024"));
}

TEST(Hosts, OfAFile) {
  const test::TempFolder folder;
  const std::string path = folder.file("hosts",
                                       "# the left rack\n"
                                       "\n"
                                       "a slots=4\n"
                                       "  b:2   # half of it\r\n"
                                       "user@c slots=8 max_slots=8\n"
                                       "[fe80::1] max-slots=2\n"
                                       "d\n"
                                       "d");
  EXPECT_THAT(texts(remote::read_hostfile(path)),
              ElementsAre("a 4", "b 2", "user@c 8", "fe80::1 0", "d 2"));
}

TEST(Hosts, MistakesNameFileAndLine) {
  const test::TempFolder folder;
  const std::pair<const char*, const char*> mistakes[] = {
      {"a\nb 4\n", ":2: `4` is not understood; a line is HOST, HOST slots=4 or HOST:4"},
      {"a:2 slots=2\n", ":1: `slots=2` is not understood"},
      {"\n\na slots=four\n", ":3: slots=four has no number of slots in [1, 1024]"},
      {"a slots\n", ":1: slots has no number of slots"},
      {"a slots=4 max_slots=2\n", ":1: max_slots=2 is less than slots=4"},
      {"a:4 ifhn=eth1\n", ":1: `ifhn=eth1` is not understood"},
      {"a,b\n", ":1: a,b is not a host"},
      {"# none\n", " names no host; write one per line: HOST slots=4"},
  };
  for (const auto& [text, says] : mistakes) {
    const std::string path = folder.file("hosts", text);
    EXPECT_THAT(refusal([&] { remote::read_hostfile(path); }), HasSubstr(path + says));
  }
  EXPECT_THAT(refusal([&] { remote::read_hostfile(folder.path() + "/none"); }),
              HasSubstr("No such file or directory"));
}

}  // namespace
}  // namespace lockstep
