// Jobs of two nodes, each a machine of its own as far as lockstep can see.

#include <algorithm>
#include <signal.h>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/socket.h"
#include "support/job.h"
#include "support/nodes.h"
#include "support/paths.h"
#include "support/service.h"

namespace lockstep::test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// How a node is lost that falls silent. The launchers' own clocks say it: on a busy host the time
// until they have ended says little.
const std::string kSilence =
    fmt::format("not heard of for {}", base::to_text(base::kDefaultLostAfter));
const std::string kSecret = "0123456789abcdef0123456789abcdef";
// What ranks do until they are stopped, after they have said that they run.
const std::string kWait = "echo up $RANK; exec sleep 1000";

using Words = std::vector<std::string>;

class SeveralNodes : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!nodes_refusal()) {
      nodes_ = std::make_unique<TestNodes>(2);
    }
  }
  static void TearDownTestSuite() { nodes_.reset(); }

  void SetUp() override { LOCKSTEP_NEEDS("namespaces", nodes_refusal()); }

  void TearDown() override {
    if (nodes_) {
      nodes_->mend_link(1);  // whatever became of the test
    }
  }

  // `lockstep run ARGUMENTS` on a node.
  static std::unique_ptr<Job> start(int node, Words arguments, std::string secret = kSecret) {
    return std::make_unique<Job>(
        std::move(arguments),
        JobPlace{.env = {{"LOCKSTEP_JOB_SECRET", std::move(secret)}},
                 .inside = [node](base::ProcessOptions o) { return nodes_->inside(node, o); }});
  }

  // The flags of a job that meets on node 0, and a shell script to run.
  static Words rendezvous(Words more, const std::string& script) {
    Words words{"--nproc-per-node=2", "--rdzv-backend=lockstep", "--rdzv-endpoint=node0:29400"};
    words.insert(words.end(), more.begin(), more.end());
    if (std::none_of(more.begin(), more.end(),
                     [](const auto& word) { return word.starts_with("--nnodes"); })) {
      words.push_back("--nnodes=2");
    }
    words.insert(words.end(), {"--", "sh", "-c", script});
    return words;
  }

  struct Pair {
    std::unique_ptr<Job> head, other;
  };
  static Pair start_both(const Words& more, const std::string& script) {
    return {start(0, rendezvous(more, script)), start(1, rendezvous(more, script))};
  }
  static void expect_running(const Pair& jobs) {
    ASSERT_TRUE(jobs.head->wait_for_output("up", 2)) << jobs.head->err();
    ASSERT_TRUE(jobs.other->wait_for_output("up", 2)) << jobs.other->err();
  }
  static void expect_gone(const Pair& jobs) {
    EXPECT_TRUE(jobs.head->is_gone());
    EXPECT_TRUE(jobs.other->is_gone());
  }

  static std::unique_ptr<TestNodes> nodes_;
};

std::unique_ptr<TestNodes> SeveralNodes::nodes_;

TEST_F(SeveralNodes, EveryRankKnowsItsPlace) {
  const std::string script =
      "echo rank $RANK of $WORLD_SIZE local $LOCAL_RANK node $GROUP_RANK of $GROUP_WORLD_SIZE at "
      "$MASTER_ADDR on $(hostname) store $LOCKSTEP_STORE";
  const Pair jobs = start_both({}, script);
  EXPECT_EQ(jobs.head->wait().shell_code(), 0) << jobs.head->err();
  EXPECT_EQ(jobs.other->wait().shell_code(), 0) << jobs.other->err();
  const std::string all = jobs.head->out() + jobs.other->out();
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(all, HasSubstr(fmt::format("n{0} r{1}: rank {1} of 4 local {2} node {0} of 2 at "
                                           "10.88.0.1 on node{0} store 10.88.0.1:29400",
                                           rank / 2, rank, rank % 2)));
  }
  expect_gone(jobs);
}

TEST_F(SeveralNodes, MeetAsTorchrunsStaticNodesDo) {
  const auto flags = [](int node) {
    return Words{"--nnodes=2",
                 "--node_rank",
                 std::to_string(node),
                 "--master_addr",
                 "node0",
                 "--master_port",
                 "29517",
                 "--nproc_per_node=1",
                 "sh",
                 "-c",
                 "echo rank $RANK on $(hostname)"};
  };
  const auto second = start(1, flags(1));  // first: it waits for the head
  const auto first = start(0, flags(0));
  EXPECT_EQ(first->wait().shell_code(), 0) << first->err();
  EXPECT_EQ(second->wait().shell_code(), 0) << second->err();
  EXPECT_THAT(first->out(), HasSubstr("rank 0 on node0"));
  EXPECT_THAT(second->out(), HasSubstr("rank 1 on node1"));
}

TEST_F(SeveralNodes, AFailureAnywhereIsReportedFirstByTheHead) {
  const Pair jobs = start_both(
      {}, "if [ $RANK = 3 ]; then echo last words; exit 7; fi; echo up; exec sleep 1000");
  EXPECT_EQ(jobs.head->wait().shell_code(), 7);
  EXPECT_EQ(jobs.other->wait().shell_code(), 7);
  EXPECT_THAT(jobs.head->err(), AllOf(HasSubstr("rank 3 (node1, node 1, local rank 1"),
                                      HasSubstr("exit code 7"), HasSubstr("last words")));
  EXPECT_THAT(jobs.other->err(), HasSubstr("rank 3"));
  expect_gone(jobs);
}

TEST_F(SeveralNodes, EachWorkersDeathEndsAll) {
  for (int victim = 0; victim < 4; ++victim) {
    const Pair jobs = start_both({}, kWait);
    expect_running(jobs);
    Job& job = victim < 2 ? *jobs.head : *jobs.other;
    const std::vector<pid_t> workers = job.workers();
    ASSERT_EQ(workers.size(), 2u);
    ::kill(workers[static_cast<size_t>(victim % 2)], SIGKILL);
    EXPECT_EQ(jobs.head->wait().shell_code(), 137);
    EXPECT_EQ(jobs.other->wait().shell_code(), 137);
    EXPECT_THAT(jobs.head->err(), HasSubstr(fmt::format("node {}", victim / 2)));
    expect_gone(jobs);
  }
}

TEST_F(SeveralNodes, ALostLauncherEndsAllAndIsNamed) {
  for (const bool is_head : {false, true}) {
    const Pair jobs = start_both({}, kWait);
    expect_running(jobs);
    Job& killed = is_head ? *jobs.head : *jobs.other;
    Job& left = is_head ? *jobs.other : *jobs.head;
    killed.kill(SIGKILL);
    EXPECT_NE(left.wait().shell_code(), 0);
    EXPECT_THAT(left.err(), HasSubstr(is_head ? "the head of the job is lost" : "node 1 (node1"));
    EXPECT_THAT(left.err(), Not(HasSubstr(kSilence))) << "its connection ends at once";
    killed.wait();
    expect_gone(jobs);
  }
}

TEST_F(SeveralNodes, ACutLinkIsNoticedOnBothSides) {
  const Pair jobs = start_both({}, kWait);
  expect_running(jobs);
  nodes_->cut_link(1);
  EXPECT_NE(jobs.head->wait().shell_code(), 0);
  EXPECT_NE(jobs.other->wait().shell_code(), 0);
  EXPECT_THAT(jobs.head->err(),
              AllOf(HasSubstr("node 1 (node1"), HasSubstr("is lost"), HasSubstr(kSilence)));
  EXPECT_THAT(jobs.other->err(),
              AllOf(HasSubstr("the head of the job is lost"), HasSubstr(kSilence)));
  nodes_->mend_link(1);
  expect_gone(jobs);
}

// An operator's case: a switch that restarts. The outage is longer than what makes a node lost by
// default, shorter than what the user asked for; ranks, their store and both launchers live on.
TEST_F(SeveralNodes, ALinkThatFlapsForLessThanTheUsersTimeCostsNothing) {
  constexpr auto kOutage = 4s;
  const TempFolder folder;  // all nodes see it
  const auto flags = [&](int node) {
    return Words{"--nproc-per-node=2",
                 "--nnodes=2",
                 "--master-addr=node0",
                 "--master-port=29611",
                 fmt::format("--node-rank={}", node),
                 "--rdzv-conf=heartbeat_timeout=30",
                 testing_support::in_build("store_member"),
                 folder.at("go")};
  };
  const Pair jobs{start(0, flags(0)), start(1, flags(1))};
  expect_running(jobs);
  nodes_->cut_link(1);
  std::this_thread::sleep_for(kOutage);  // the outage itself; nothing waits for its end
  nodes_->mend_link(1);
  EXPECT_TRUE(wait_until([&] { return count(jobs.head->err(), "is back") == 1; }))
      << jobs.head->err();
  folder.file("go", "");
  EXPECT_EQ(jobs.head->wait().shell_code(), 0) << jobs.head->err();
  EXPECT_EQ(jobs.other->wait().shell_code(), 0) << jobs.other->err();
  EXPECT_THAT(jobs.head->err(),
              HasSubstr("has not been heard of for 2.5 s; it is lost after 30 s"));
  expect_gone(jobs);
}

// The head cannot be asked: Ctrl-C on a node reaches the ranks there as it came, and once more ends
// them.
TEST_F(SeveralNodes, ASignalWhileTheHeadIsOutOfReachIsPassedOnAsItCame) {
  const std::string script =
      "trap 'echo saw INT $RANK' INT; trap 'echo saw TERM $RANK' TERM; echo up $RANK; "
      "while :; do sleep 0.05; done";
  const Words flags = rendezvous({"--rdzv-conf=heartbeat_timeout=60", "--stop-grace=1000"}, script);
  const Pair jobs{start(0, flags),
                  std::make_unique<Job>(flags, JobPlace{.env = {{"LOCKSTEP_JOB_SECRET", kSecret},
                                                                {"LOCKSTEP_LOG_LEVEL", "debug"}},
                                                        .inside = [](base::ProcessOptions o) {
                                                          return nodes_->inside(1, std::move(o));
                                                        }})};
  expect_running(jobs);
  nodes_->cut_link(1);
  ASSERT_TRUE(wait_until(
      [&] { return count(jobs.other->err(), "the head of the job cannot be reached") > 0; }));
  jobs.other->kill(SIGINT);
  EXPECT_TRUE(jobs.other->wait_for_output("saw INT", 2));
  jobs.other->kill(SIGINT);
  EXPECT_EQ(jobs.other->wait().shell_code(), 130) << jobs.other->err();
  EXPECT_THAT(jobs.other->out(), Not(HasSubstr("saw TERM")));
  jobs.head->kill(SIGKILL);
  jobs.head->wait();
  expect_gone(jobs);
}

TEST_F(SeveralNodes, AFrozenNodeIsLostAndEndsWhenItThaws) {
  const Pair jobs = start_both({}, kWait);
  expect_running(jobs);
  const std::vector<pid_t> frozen = jobs.other->processes();
  for (const pid_t pid : frozen) {
    ::kill(pid, SIGSTOP);
  }
  EXPECT_NE(jobs.head->wait().shell_code(), 0);
  EXPECT_THAT(jobs.head->err(), AllOf(HasSubstr("node 1 (node1"), HasSubstr(kSilence)));
  for (const pid_t pid : frozen) {
    ::kill(pid, SIGCONT);
  }
  EXPECT_NE(jobs.other->wait().shell_code(), 0);
  expect_gone(jobs);
}

TEST_F(SeveralNodes, RestartAfterAFailure) {
  const Pair jobs = start_both(
      {"--max-restarts=1"},
      "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then [ $RANK = 3 ] && exit 5; exec sleep 1000; fi; "
      "echo again $RANK generation $LOCKSTEP_GENERATION of $TORCHELASTIC_MAX_RESTARTS");
  EXPECT_EQ(jobs.head->wait().shell_code(), 0) << jobs.head->err();
  EXPECT_EQ(jobs.other->wait().shell_code(), 0) << jobs.other->err();
  EXPECT_THAT(jobs.head->out(), HasSubstr("again 0 generation 1 of 1"));
  EXPECT_THAT(jobs.other->out(), HasSubstr("again 3 generation 1 of 1"));
  EXPECT_THAT(jobs.head->err(), HasSubstr("restart 1 of 1"));
  expect_gone(jobs);
}

TEST_F(SeveralNodes, AnElasticJobShrinksAndGrows) {
  const Words elastic{"--nnodes=1:2", "--rdzv-conf=last_call_timeout=60"};
  const std::string script = "echo up $RANK of $WORLD_SIZE; exec sleep 1000";
  Pair jobs = start_both(elastic, script);
  expect_running(jobs);
  jobs.other->kill(SIGKILL);
  ASSERT_TRUE(jobs.head->wait_for_output("of 2", 2)) << "it goes on alone: " << jobs.head->err();
  const auto replacement = start(1, rendezvous(elastic, script));
  ASSERT_TRUE(jobs.head->wait_for_output("of 4", 4)) << "two at first, two again";
  ASSERT_TRUE(replacement->wait_for_output("of 4", 2));
  EXPECT_THAT(jobs.head->err(), HasSubstr("node1 joins"));
  jobs.head->kill(SIGTERM);
  EXPECT_EQ(jobs.head->wait().shell_code(), 143);
  EXPECT_EQ(replacement->wait().shell_code(), 143);
  jobs.other->wait();
  expect_gone(jobs);
  EXPECT_TRUE(replacement->is_gone());
}

TEST_F(SeveralNodes, ANodeThatWasCutOffComesBack) {
  const Words elastic{"--nnodes=1:2"};
  const Pair jobs = start_both(elastic, "echo up $RANK of $WORLD_SIZE; exec sleep 1000");
  expect_running(jobs);
  nodes_->cut_link(1);
  ASSERT_TRUE(jobs.head->wait_for_output("of 2", 2));
  ASSERT_TRUE(wait_until([&] { return count(jobs.other->err(), "tries to join again") == 1; }));
  nodes_->mend_link(1);
  EXPECT_TRUE(jobs.head->wait_for_output("of 4", 4));
  EXPECT_TRUE(jobs.other->wait_for_output("of 4", 4));
  jobs.other->kill(SIGINT);
  EXPECT_EQ(jobs.head->wait().shell_code(), 130);
  EXPECT_EQ(jobs.other->wait().shell_code(), 130);
  expect_gone(jobs);
}

TEST_F(SeveralNodes, AHostNameThatLeadsToLoopbackDoesNotMatter) {
  nodes_->write_hosts(0, "127.0.0.1 localhost\n127.0.1.1 node0\n10.88.0.2 node1\n");
  const Pair jobs = start_both({}, "echo $LOCKSTEP_STORE $MASTER_ADDR");
  EXPECT_EQ(jobs.head->wait().shell_code(), 0) << jobs.head->err();
  EXPECT_EQ(jobs.other->wait().shell_code(), 0) << jobs.other->err();
  EXPECT_THAT(jobs.other->out(), HasSubstr("10.88.0.1:29400 10.88.0.1"));
  nodes_->write_hosts(0, "127.0.0.1 localhost\n10.88.0.1 node0\n10.88.0.2 node1\n");
}

TEST_F(SeveralNodes, AWrongSecretIsRefusedAndCostsNothing) {
  const auto head = start(0, rendezvous({}, kWait));
  const auto stranger = start(1, rendezvous({}, kWait), "another-secret-of-32-characters!");
  EXPECT_EQ(stranger->wait().shell_code(), 1);
  EXPECT_THAT(stranger->err(), HasSubstr("LOCKSTEP_JOB_SECRET"));
  EXPECT_TRUE(wait_until([&] { return count(head->err(), "is its secret another one") == 1; }))
      << "the head says it too: " << head->err();
  EXPECT_THAT(head->err(), HasSubstr("10.88.0.2:"));
  const auto weak = start(1, rendezvous({}, kWait), "password12345678");
  EXPECT_EQ(weak->wait().shell_code(), 2);
  EXPECT_THAT(weak->err(),
              AllOf(HasSubstr("16 letters are 82 bits at most, and 128 bits are needed"),
                    HasSubstr("openssl rand -hex 32")));
  const auto other = start(1, rendezvous({}, kWait));
  EXPECT_TRUE(other->wait_for_output("up", 2)) << head->err();
  head->kill(SIGTERM);
  EXPECT_EQ(head->wait().shell_code(), 143);
  EXPECT_EQ(other->wait().shell_code(), 143);
}

TEST_F(SeveralNodes, TwoJobsWithOneIdOnOnePortStayApart) {
  const Pair jobs = start_both({"--rdzv-id=same"}, kWait);
  expect_running(jobs);
  const auto third = start(1, rendezvous({"--rdzv-id=same"}, "echo something else"));
  EXPECT_EQ(third->wait().shell_code(), 1);
  EXPECT_THAT(third->err(), HasSubstr("it runs something else"));
  EXPECT_THAT(jobs.head->err(), HasSubstr("refused the node on node1"));
  const auto fourth = start(0, rendezvous({"--rdzv-id=same"}, kWait));
  EXPECT_EQ(fourth->wait().shell_code(), 1);
  EXPECT_THAT(fourth->err(), HasSubstr("the job has its 2 nodes already: node0, node1"));
  const auto fifth = start(1, rendezvous({"--rdzv-id=other"}, kWait));
  EXPECT_EQ(fifth->wait().shell_code(), 1);
  EXPECT_THAT(fifth->err(), HasSubstr("it belongs to job other"));
  jobs.head->kill(SIGINT);
  EXPECT_EQ(jobs.head->wait().shell_code(), 130);
  EXPECT_EQ(jobs.other->wait().shell_code(), 130);
}

TEST_F(SeveralNodes, ATakenPortIsOneSentence) {
  const auto flags = [](const std::string& script) {
    return Words{
        "--nnodes=2", "--node-rank=0", "--master-addr=node0", "--master-port=29555", "--", "sh",
        "-c",         script};
  };
  const auto first = start(0, flags(kWait));
  ASSERT_TRUE(wait_until([&] {  // it listens
    return nodes_->processes(0).size() >= 1 &&
           base::run_process(nodes_->inside(0, {.argv = {"ss", "-ltn"}}),
                             base::Deadline::after(kPatience))
                   .out.find(":29555") != std::string::npos;
  }));
  const auto second = start(0, flags("echo another job"));
  EXPECT_EQ(second->wait().shell_code(), 2);
  EXPECT_THAT(second->err(), AllOf(HasSubstr("10.88.0.1:29555"), HasSubstr("choose another port")));
  first->kill(SIGINT);
  EXPECT_EQ(first->wait().shell_code(), 130);
}

TEST_F(SeveralNodes, NodesThatDoNotComeAreWaitedForThatLong) {
  const auto head = start(0, rendezvous({"--rdzv-conf=join_timeout=1"}, kWait));
  EXPECT_EQ(head->wait().shell_code(), 1);
  EXPECT_THAT(head->err(), HasSubstr("only 1 of 2 nodes came together within 1 s: node0"));
  const auto other = start(1, rendezvous({"--rdzv-conf=join_timeout=1"}, kWait));
  EXPECT_EQ(other->wait().shell_code(), 1);
  EXPECT_THAT(other->err(), HasSubstr("did not answer within 1 s"));
}

TEST_F(SeveralNodes, AFullDiskUnderTheLogsCostsTheJobNothing) {
  const TempFolder folder;  // the host's; what is mounted on it is the node's alone
  const base::Output mounted = base::run_process(
      nodes_->inside(0,
                     {.argv = {"mount", "-t", "tmpfs", "-o", "size=16k", "none", folder.path()}}),
      base::Deadline::after(kPatience));
  ASSERT_TRUE(mounted.status.ok()) << mounted.err;
  const auto job = start(0, {"--log-dir", folder.path(), "--", "sh", "-c",
                             "i=0; while [ $i -lt 2000 ]; do echo line $i of a long output; "
                             "i=$((i+1)); done"});
  EXPECT_EQ(job->wait().shell_code(), 0) << job->err();
  EXPECT_EQ(count(job->out(), "of a long output"), 2000);
  EXPECT_EQ(count(job->err(), "No space left on device; going on without this log file"), 1);
  EXPECT_EQ(lines(job->err()).size(), 1u) << job->err();
  base::run_process(nodes_->inside(0, {.argv = {"umount", folder.path()}}),
                    base::Deadline::after(kPatience));
}

}  // namespace
}  // namespace lockstep::test
