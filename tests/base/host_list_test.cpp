#include "base/host_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "support/refusal.h"

namespace lockstep {
namespace {

using test::refusal;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(HostList, IsExpandedInOrder) {
  const auto expand = [](const std::string& list) { return base::expand_host_list(list, "LIST"); };
  EXPECT_THAT(expand("login"), ElementsAre("login"));
  EXPECT_THAT(expand("b,a"), ElementsAre("b", "a"));
  EXPECT_THAT(expand("gpu[001-003,7],login"),
              ElementsAre("gpu001", "gpu002", "gpu003", "gpu7", "login"));
  EXPECT_THAT(expand("n[8-11]"), ElementsAre("n8", "n9", "n10", "n11"));
  EXPECT_THAT(expand("n[098-101]"), ElementsAre("n098", "n099", "n100", "n101"));
  EXPECT_THAT(expand("r[1-2]n[3-4]"), ElementsAre("r1n3", "r1n4", "r2n3", "r2n4"));
  EXPECT_THAT(
      expand("r[1-2]n[1,5]-ib.cluster,x"),
      ElementsAre("r1n1-ib.cluster", "r1n5-ib.cluster", "r2n1-ib.cluster", "r2n5-ib.cluster", "x"));
  EXPECT_THAT(expand("[1-2]"), ElementsAre("1", "2"));
  EXPECT_THAT(expand("a[5-5]"), ElementsAre("a5"));
  EXPECT_THAT(expand("n[1-65536]"), SizeIs(65536));
}

TEST(HostList, ThatIsMalformedIsNamed) {
  const auto says = [](const std::string& list) {
    return refusal([&] { base::expand_host_list(list, "LIST"); });
  };
  EXPECT_EQ(says(""), "LIST= is not a list that Slurm writes: a host has no name");
  EXPECT_THAT(says("a,,b"), HasSubstr("a host has no name"));
  EXPECT_THAT(says("a,"), HasSubstr("a host has no name"));
  EXPECT_THAT(says("n[1-3"), HasSubstr("a bracket is not closed"));
  EXPECT_THAT(says("n[1[2]]"), HasSubstr("a bracket is not closed"));
  EXPECT_THAT(says("n[1-3]]"), HasSubstr("']' is in no host name"));
  EXPECT_THAT(says("n[3-1]"), HasSubstr("[3-1] is no range"));
  EXPECT_THAT(says("n[]"), HasSubstr("[-] is no range"));
  EXPECT_THAT(says("n[1-]"), HasSubstr("[1-] is no range"));
  EXPECT_THAT(says("n[a-b]"), HasSubstr("is no range"));
  EXPECT_THAT(says("n[1-99999999999999999999]"), HasSubstr("is no range"));
  EXPECT_THAT(says("n1;reboot"), HasSubstr("';' is in no host name"));
  EXPECT_THAT(says("n 1"), HasSubstr("' ' is in no host name"));
}

TEST(HostList, ThatIsAbsurdlyLongIsRefusedBeforeItIsExpanded) {
  for (const std::string list :
       {"n[1-65537]", "n[0-999999999]", "r[1-1000]n[1-1000]", "a[1-60000],b[1-60000]",
        "a[1-60000,70000-130000]", "a[1-999]b[1-999]c[1-999]d[1-999]"}) {
    EXPECT_EQ(refusal([&] { base::expand_host_list(list, "LIST"); }),
              "LIST=" + list + " names more than 65536 hosts");
  }
}

TEST(TasksPerNode, AreCountedThrough) {
  const std::string list = "2(x3),1,4(x2)";
  std::vector<int> tasks;
  for (int node = 0; node < 6; ++node) {
    tasks.push_back(base::tasks_on_node(list, node, "LIST"));
  }
  EXPECT_THAT(tasks, ElementsAre(2, 2, 2, 1, 4, 4));
  EXPECT_EQ(refusal([&] { base::tasks_on_node(list, 6, "LIST"); }),
            "LIST=2(x3),1,4(x2) says nothing about node 6");
  for (const std::string wrong : {"", "x", "2(x", "2(x3", "2(3)", "(x3)", "2(x0)", "2(x3)1", ","}) {
    EXPECT_THAT(refusal([&] { base::tasks_on_node(wrong, 0, "LIST"); }),
                HasSubstr("is no number of tasks such as 2 or 2(x3)"))
        << wrong;
  }
}

}  // namespace
}  // namespace lockstep
