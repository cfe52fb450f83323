// An operator's day, from the first job to the last: two machines, a link that fails, bars,
// prompts, a reader that sleeps, an ordinary user with many ranks. The ranks use the library's
// collectives and check their results (operator_rank.cpp); afterwards nothing of it is left.

#include <algorithm>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <optional>
#include <poll.h>
#include <regex>
#include <set>
#include <signal.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/desk.h"
#include "support/job.h"
#include "support/nodes.h"
#include "support/paths.h"
#include "support/service.h"

namespace lockstep::test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

using Words = std::vector<std::string>;

const std::string kRank = testing_support::in_build("operator_rank");

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

// Whether a rank of this launcher waits for someone to read what it writes; the others wait for it.
bool is_rank_blocked(pid_t leader) {
  std::vector<pid_t> pids{leader};
  for (int level = 0; level < 3; ++level) {  // agents, guardians, workers
    std::vector<pid_t> below;
    for (const pid_t pid : pids) {
      const auto children = children_of(pid);
      below.insert(below.end(), children.begin(), children.end());
    }
    pids = below;
  }
  const auto is_full = [](pid_t pid, int fd) {
    const base::UniqueFd pipe(
        ::open(fmt::format("/proc/{}/fd/{}", pid, fd).c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    pollfd room{.fd = pipe.get(), .events = POLLOUT, .revents = 0};
    return pipe && ::poll(&room, 1, 0) == 0;
  };
  return std::any_of(pids.begin(), pids.end(),
                     [&](pid_t pid) { return is_full(pid, 1) || is_full(pid, 2); });
}

class OperatorWalk : public ::testing::Test {
 public:
  void SetUp() override {
    LOCKSTEP_NEEDS("namespaces", nodes_refusal());
    fs::create_directory(tmp());
    for (const std::string& folder : {folder_.path(), tmp()}) {
      fs::permissions(folder, fs::perms::all);  // the ordinary user's too
    }
    interfaces_ = names_in("/sys/class/net");
    nodes_ = std::make_unique<TestNodes>(2);
    for (int node = 0; node < nodes_->size(); ++node) {
      tell(node, {"mount", "-t", "tmpfs", "-o", "mode=1777", "none", "/dev/shm"});
      mounts_.push_back(tell(node, {"cat", "/proc/self/mounts"}));
    }
  }

  // One part of the day; the next one comes only if this one could be told to its end.
  void live(const char* what, void (OperatorWalk::*part)()) {
    if (HasFatalFailure()) {
      return;
    }
    SCOPED_TRACE(what);
    const auto begin = base::Clock::now();
    (this->*part)();
    const std::chrono::duration<double> took = base::Clock::now() - begin;
    RecordProperty(what, fmt::format("{:.1f} s", took.count()));
  }

  void train_on_two_machines();
  void ride_out_an_outage();
  void lose_a_machine();
  void watch_bars();
  void be_asked_where_nobody_is();
  void be_asked_at_the_desk();
  void stop_though_nobody_reads();
  void have_many_ranks_as_an_ordinary_user();
  void leave_nothing_behind();

 private:
  // A program of the machine's, to its end; what it says.
  std::string tell(int node, Words argv) const {
    const base::Output output = base::run_process(nodes_->inside(node, {.argv = std::move(argv)}),
                                                  base::Deadline::after(kPatience));
    EXPECT_TRUE(output.status.ok()) << output.err;
    return output.out;
  }

  std::string tmp() const { return folder_.at("tmp"); }

  JobPlace place(int node) const {
    return {.env = {{"LOCKSTEP_JOB_SECRET", "0123456789abcdef0123456789abcdef"},
                    {"LOCKSTEP_LOG_LEVEL", "warn"},
                    {"TMPDIR", tmp()},
                    {"XDG_RUNTIME_DIR", tmp()}},
            .inside = [this, node](base::ProcessOptions o) { return nodes_->inside(node, o); }};
  }

  struct Pair {
    std::unique_ptr<Job> head, other;
    std::string out() const { return head->out() + other->out(); }
    std::string err() const { return head->err() + other->err(); }
    void expect_gone() const {
      EXPECT_TRUE(head->is_gone());
      EXPECT_TRUE(other->is_gone());
    }
  };

  // A job of four ranks on the two machines, which runs until `go` exists.
  Pair start_pair(const Words& more, const std::string& go) const {
    const auto start = [&](int node) {
      Words words{"--nproc-per-node=2", "--nnodes=2", "--rdzv-endpoint=node0:29400"};
      words.insert(words.end(), more.begin(), more.end());
      words.insert(words.end(), {kRank, "until", go});
      return std::make_unique<Job>(words, place(node));
    };
    return {start(0), start(1)};
  }
  static void expect_up(const Pair& jobs) {
    for (Job* job : {jobs.head.get(), jobs.other.get()}) {
      ASSERT_TRUE(job->wait_for_output("of 4 on hierarchical", 2)) << jobs.err();
    }
  }
  static void expect_right_end(const Pair& jobs) {
    EXPECT_EQ(jobs.head->wait().shell_code(), 0) << jobs.err();
    EXPECT_EQ(jobs.other->wait().shell_code(), 0) << jobs.err();
    EXPECT_EQ(count(jobs.out(), "steps were right"), 4) << jobs.out();
    jobs.expect_gone();
  }

  TempFolder folder_;
  std::set<std::string> interfaces_;
  std::unique_ptr<TestNodes> nodes_;
  std::vector<std::string> mounts_;
};

void OperatorWalk::train_on_two_machines() {
  const Pair jobs = start_pair({}, folder_.at("first"));
  expect_up(jobs);
  folder_.file("first", "");
  expect_right_end(jobs);
  EXPECT_EQ(jobs.err(), "") << "all went well";
}

// A switch restarts, while the ranks are in their collectives.
void OperatorWalk::ride_out_an_outage() {
  constexpr auto kOutage = 4s;
  const Pair jobs = start_pair({"--rdzv-conf=heartbeat_timeout=30"}, folder_.at("second"));
  ASSERT_NO_FATAL_FAILURE(expect_up(jobs));
  nodes_->cut_link(1);
  std::this_thread::sleep_for(kOutage);  // the outage itself; nothing waits for its end
  nodes_->mend_link(1);
  EXPECT_TRUE(wait_until([&] { return count(jobs.head->err(), "is back") == 1; })) << jobs.err();
  folder_.file("second", "");
  expect_right_end(jobs);
  EXPECT_THAT(jobs.head->err(),
              AllOf(HasSubstr("node 1 (node1"),
                    HasSubstr("not been heard of for 2.5 s; it is lost after 30 s")));
  std::smatch longest;
  const std::string out = jobs.out();
  ASSERT_TRUE(std::regex_search(out, longest, std::regex("longest ([0-9.]+) s"))) << out;
  EXPECT_GE(std::stod(longest[1]), 3.5) << "a collective was under way, and came to its end";
}

// The same, where nobody has asked for patience.
void OperatorWalk::lose_a_machine() {
  const Pair jobs = start_pair({}, folder_.at("never"));
  ASSERT_NO_FATAL_FAILURE(expect_up(jobs));
  const auto begin = base::Clock::now();
  nodes_->cut_link(1);
  EXPECT_EQ(jobs.head->wait().shell_code(), 1) << jobs.err();
  EXPECT_EQ(jobs.other->wait().shell_code(), 1) << jobs.err();
  EXPECT_LT(base::Clock::now() - begin, 5s);
  nodes_->mend_link(1);
  EXPECT_THAT(jobs.head->err(), AllOf(HasSubstr("node 1 (node1"), HasSubstr("is lost")));
  EXPECT_THAT(jobs.other->err(), HasSubstr("the head of the job is lost"));
  jobs.expect_gone();
}

void OperatorWalk::watch_bars() {
  Job job({"--nproc-per-node=4", kRank, "bars"}, place(0));
  EXPECT_EQ(job.wait().shell_code(), 0) << job.err();
  std::map<std::string, int> last;
  const std::regex shape("r([0-3]): +([0-9]+)%\\|([# ]{10})\\| ([0-9]+)/100 of rank ([0-3])");
  std::string text = job.err();
  std::replace(text.begin(), text.end(), '\r', '\n');
  for (const std::string& bar : lines(text)) {
    std::smatch match;
    if (bar.empty()) {
      continue;
    }
    ASSERT_TRUE(std::regex_match(bar, match, shape)) << bar;
    EXPECT_EQ(match[1], match[5]) << bar;
    EXPECT_EQ(match[2], match[4]) << bar;
    EXPECT_GE(std::stoi(match[2]), last[match[1]]) << bar;
    last[match[1]] = std::stoi(match[2]);
  }
  EXPECT_THAT(
      last, ::testing::UnorderedElementsAre(::testing::Pair("0", 100), ::testing::Pair("1", 100),
                                            ::testing::Pair("2", 100), ::testing::Pair("3", 100)));
  EXPECT_TRUE(job.is_gone());
}

// At a terminal, but without --stdin: it must not wait for an answer that cannot come.
void OperatorWalk::be_asked_where_nobody_is() {
  Desk desk(fmt::format("exec {} run --nproc-per-node 2 {} ask", lockstep_program(), kRank),
            place(0));
  EXPECT_EQ(desk.wait().shell_code(), 7) << desk.screen();
  EXPECT_THAT(desk.screen(), HasSubstr("rank 1 ("));
  EXPECT_THAT(desk.screen(), HasSubstr("cannot ask for the password: /dev/tty"));
}

void OperatorWalk::be_asked_at_the_desk() {
  Desk desk(fmt::format("before=$(stty -g); {} run --nproc-per-node 2 --stdin 1 {} ask; "
                        "echo code $?; [ $before = $(stty -g) ] && echo restored",
                        lockstep_program(), kRank),
            place(0));
  ASSERT_TRUE(desk.sees("r1: password: ")) << desk.screen();
  desk.type("open sesame\n");
  EXPECT_EQ(desk.wait().shell_code(), 0) << desk.screen();
  EXPECT_EQ(count(desk.screen(), "the password has 11 letters, the last is e"), 2) << desk.screen();
  EXPECT_EQ(count(desk.screen(), "sesame"), 0) << "it was not to be shown";
  EXPECT_THAT(desk.screen(), AllOf(HasSubstr("code 0"), HasSubstr("restored")));
}

// A pager that was stopped, a terminal that was left in its scrollback.
void OperatorWalk::stop_though_nobody_reads() {
  base::FdPair out = base::make_pipe(), err = base::make_pipe();
  base::Process process(nodes_->inside(0, {.argv = {lockstep_program(), "run", "--nproc-per-node",
                                                    "2", kRank, "chat", folder_.path()},
                                           .env = place(0).env,
                                           .stdout_fd = out.write.get(),
                                           .stderr_fd = err.write.get(),
                                           .new_group = true}));
  constexpr int kManyTimes = 20;  // a pipe may be full for a moment, too
  int in_a_row = 0;
  ASSERT_TRUE(wait_until([&] {
    in_a_row = is_rank_blocked(process.pid()) ? in_a_row + 1 : 0;
    return in_a_row == kManyTimes;
  }));
  const auto told = base::Clock::now();
  process.kill(SIGTERM);
  const auto status = process.wait(base::Deadline::after(kPatience));
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->shell_code(), 143);
  EXPECT_LT(base::Clock::now() - told, 8s) << "the grace alone is 10 s";
  EXPECT_TRUE(fs::exists(folder_.at("saved-0")) && fs::exists(folder_.at("saved-1")))
      << "what is written to nobody is no reason to lose the checkpoint";
  EXPECT_TRUE(wait_until([&] { return nodes_->processes(0).empty(); }));
}

void OperatorWalk::have_many_ranks_as_an_ordinary_user() {
  constexpr int kRanks = 128;
  constexpr auto kStart = 120s;  // libtorch takes 0.3 s of a core to start
  JobPlace user = place(0);
  user.inside = [this](base::ProcessOptions options) {
    const Words words{"setpriv",        "--reuid=65534", "--regid=65534",
                      "--clear-groups", "prlimit",       "--nofile=1024:1024"};
    options.argv.insert(options.argv.begin(), words.begin(), words.end());
    return nodes_->inside(0, options);
  };
  Job job({fmt::format("--nproc-per-node={}", kRanks), kRank, "once"}, user);
  EXPECT_EQ(job.wait(kStart).shell_code(), 0) << job.err();
  EXPECT_EQ(count(job.out(), fmt::format("of {} on shm", kRanks)), kRanks)
      << "not one of them does without shared memory: " << job.err();
  EXPECT_EQ(count(job.out(), "right for user 65534 with 1024 files"), kRanks) << job.err();
  EXPECT_TRUE(job.is_gone());
}

void OperatorWalk::leave_nothing_behind() {
  for (int node = 0; node < nodes_->size(); ++node) {
    EXPECT_TRUE(wait_until([&] { return nodes_->processes(node).empty(); })) << "node " << node;
    EXPECT_EQ(tell(node, {"ls", "-A", "/dev/shm"}), "");
    EXPECT_EQ(tell(node, {"cat", "/proc/self/mounts"}), mounts_[static_cast<size_t>(node)]);
  }
  EXPECT_THAT(names_in(tmp()), ::testing::IsEmpty());
  nodes_.reset();
  EXPECT_THAT(children_of(::getpid()), ::testing::IsEmpty());
  EXPECT_EQ(names_in("/sys/class/net"), interfaces_);
}

TEST_F(OperatorWalk, FromTheFirstJobToTheLast) {
  live("train_on_two_machines", &OperatorWalk::train_on_two_machines);
  live("ride_out_an_outage", &OperatorWalk::ride_out_an_outage);
  live("lose_a_machine", &OperatorWalk::lose_a_machine);
  live("watch_bars", &OperatorWalk::watch_bars);
  live("be_asked_where_nobody_is", &OperatorWalk::be_asked_where_nobody_is);
  live("be_asked_at_the_desk", &OperatorWalk::be_asked_at_the_desk);
  live("stop_though_nobody_reads", &OperatorWalk::stop_though_nobody_reads);
  live("have_many_ranks", &OperatorWalk::have_many_ranks_as_an_ordinary_user);
  live("leave_nothing_behind", &OperatorWalk::leave_nothing_behind);
}

}  // namespace
}  // namespace lockstep::test
