// The judgements of `lockstep doctor --hosts`, on made-up findings.

#include "doctor/doctor_hosts.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<doctor::CheckStatus> statuses(const std::vector<doctor::CheckResult>& results) {
  std::vector<doctor::CheckStatus> statuses;
  statuses.reserve(results.size());
  for (const doctor::CheckResult& result : results) {
    statuses.push_back(result.status);
  }
  return statuses;
}

TEST(JudgeHosts, Ssh) {
  const auto well = doctor::judge_ssh({{"a", 0.2, "", ""}, {"b", 0.4, "", ""}});
  ASSERT_THAT(well, SizeIs(1));
  EXPECT_EQ(well[0].found, "no password for all 2 hosts; the slowest, b, answers in 0.40 s");
  const auto ill = doctor::judge_ssh({{"a", 0.2, "", ""}, {"b", 0, "cannot reach b", "mend it"}});
  ASSERT_THAT(statuses(ill), ElementsAre(doctor::CheckStatus::Problem));
  EXPECT_EQ(ill[0].found + ill[0].fix, "cannot reach bmend it");
  EXPECT_THAT(doctor::judge_ssh({{"a", 0, "x", ""}, {"b", 0, "y", ""}}), SizeIs(2));
}

TEST(JudgeHosts, Clocks) {
  EXPECT_EQ(doctor::judge_clocks({{"a", 0.001, 0.002}, {"b", -0.4, 0.001}})[0].found,
            "within 400 ms of this host's");
  const auto off = doctor::judge_clocks({{"a", 0.7, 0.001}, {"b", -7.25, 0.001}, {"c", 0.1, 0.01}});
  ASSERT_THAT(statuses(off), ElementsAre(doctor::CheckStatus::Note, doctor::CheckStatus::Problem));
  EXPECT_EQ(off[0].found, "the clock of a is 0.7 s ahead of this host's");
  EXPECT_EQ(off[1].found, "the clock of b is 7.2 s behind this host's");
  // A slow answer cannot tell.
  EXPECT_THAT(statuses(doctor::judge_clocks({{"a", 0.7, 0.6}})),
              ElementsAre(doctor::CheckStatus::Ok));
}

TEST(JudgeHosts, Programs) {
  const auto same = doctor::judge_programs({{"a", "0.1.0", "x", ""}, {"b", "0.1.0", "x", ""}});
  ASSERT_THAT(same, SizeIs(1));
  EXPECT_EQ(same[0].found, "0.1.0 (build x) on all 2 hosts");
  const auto other = doctor::judge_programs({{"a", "0.2.0", "z", ""},
                                             {"b", "0.1.0", "x", ""},
                                             {"c", "0.1.0", "y", ""},
                                             {"d", "0.1.0", "x", ""}});
  ASSERT_THAT(statuses(other),
              ElementsAre(doctor::CheckStatus::Problem, doctor::CheckStatus::Note));
  EXPECT_EQ(other[0].found, "a has version 0.2.0, others have 0.1.0");
  EXPECT_EQ(other[1].found, "c has another build of 0.1.0 (y, others x)");
}

TEST(JudgeHosts, Torch) {
  EXPECT_THAT(doctor::judge_torch({{"a", "", "", "2.11"}, {"b", "", "", "2.11"}})[0].found, "2.11");
  const auto missing =
      doctor::judge_torch({{"a", "", "", "2.11"}, {"b", "", "", ""}, {"c", "", "", "2.11"}});
  ASSERT_THAT(statuses(missing), ElementsAre(doctor::CheckStatus::Problem));
  EXPECT_EQ(missing[0].found, "b has no lockstep-torch, others have 2.11");
  EXPECT_THAT(statuses(doctor::judge_torch({{"a", "", "", ""}})),
              ElementsAre(doctor::CheckStatus::Note));
}

TEST(JudgeHosts, Names) {
  const doctor::NameFinding well{"a", {"a", {"10.0.0.1"}, ""}, "10.0.0.1", "eth0"};
  EXPECT_EQ(doctor::judge_names({well})[0].found, "a 10.0.0.1 (eth0)");
  const auto ill = doctor::judge_names({well,
                                        {"b", {"b", {"127.0.1.1"}, ""}, "10.0.0.2", "eth1"},
                                        {"c", {"c", {}, "unknown"}, "10.0.0.3", "eth0"}});
  ASSERT_THAT(statuses(ill), ElementsAre(doctor::CheckStatus::Note, doctor::CheckStatus::Problem));
  EXPECT_THAT(ill[0].fix, HasSubstr("\"10.0.0.2 b\" in /etc/hosts there, or set "
                                    "GLOO_SOCKET_IFNAME=eth1"));
  EXPECT_THAT(ill[1].fix, HasSubstr("add \"10.0.0.3 c\" to /etc/hosts"));
}

TEST(JudgeHosts, Ports) {
  EXPECT_EQ(doctor::judge_ports(6, {})[0].found, "each host reaches each other, 6 pairs");
  EXPECT_EQ(doctor::judge_ports(0, {})[0].found, "one host: nobody to reach");
  const auto blocked =
      doctor::judge_ports(6, {{"a", "b at 10.0.0.2:4000", "no answer within 2 s"}});
  ASSERT_THAT(statuses(blocked), ElementsAre(doctor::CheckStatus::Problem));
  EXPECT_EQ(blocked[0].found, "a cannot reach b at 10.0.0.2:4000: no answer within 2 s");
  const auto many =
      doctor::judge_ports(240, std::vector<doctor::ReachFinding>(50, {"a", "b", "x"}));
  ASSERT_THAT(many, SizeIs(21));
  EXPECT_EQ(many.back().found, "and 30 more of 240 pairs");
}

TEST(JudgeHosts, Storage) {
  EXPECT_EQ(doctor::judge_storage("/d", "a", {{"a", ""}, {"b", ""}})[0].found,
            "/d: what a writes is seen on all 2 hosts");
  EXPECT_EQ(doctor::judge_storage("/d", "a", {{"a", ""}, {"b", "gone"}})[0].found,
            "b does not see in /d what a wrote there: gone");
  EXPECT_EQ(doctor::judge_storage("/d", "a", {{"a", "read-only"}})[0].found,
            "a cannot write in /d: read-only");
}

TEST(JudgeHosts, Links) {
  EXPECT_THAT(doctor::judge_links({}), IsEmpty());
  const auto slow =
      doctor::judge_links({{"a", "b", 10, 1.2}, {"b", "a", 10, 1.1}, {"a", "c", 10, 0.1}});
  ASSERT_THAT(statuses(slow), ElementsAre(doctor::CheckStatus::Note));
  EXPECT_EQ(slow[0].found, "a -> c has 0.1 GB/s, the median is 1.1");
}

TEST(LinkRounds, GiveAHostOneLinkAtATime) {
  for (size_t num_hosts : {0, 1, 2, 3, 4, 5, 8, 9}) {
    std::set<std::pair<size_t, size_t>> all;
    for (const doctor::LinkRound& round : doctor::link_rounds(num_hosts)) {
      std::set<size_t> busy;
      for (const auto& [from, to] : round) {
        EXPECT_TRUE(busy.insert(from).second && busy.insert(to).second) << num_hosts;
        all.emplace(from, to);
      }
    }
    EXPECT_EQ(all.size(),
              num_hosts <= 4 ? num_hosts * (num_hosts - 1 + (num_hosts == 0)) : num_hosts);
  }
}

TEST(HostsReport, TableAndJsonSayTheSame) {
  const doctor::HostsReport report{{{"ssh", doctor::CheckStatus::Problem, "bad", "mend"}},
                                   {{"a", "b", 85.4, 1.17}}};
  EXPECT_EQ(doctor::hosts_table(report),
            "PROBLEM  ssh  bad\n              -> mend\n\n"
            "link    round trip    bandwidth\na -> b       85 us    1.17 GB/s\n");
  const auto json = nlohmann::json::parse(doctor::hosts_json(report));
  EXPECT_FALSE(json.at("ok").get<bool>());
  EXPECT_EQ(json.at("checks").at(0).at("fix"), "mend");
  EXPECT_EQ(json.at("links").at(0).at("gb_per_s"), 1.17);
}

TEST(CheckHosts, HasALimit) {
  EXPECT_THROW(doctor::check_hosts({.hosts = std::vector<remote::HostEntry>(257)}), UsageError);
}

}  // namespace
}  // namespace lockstep
