// `lockstep doctor --hosts` between emulated machines, over real ssh.

#include <filesystem>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "remote/ssh.h"
#include "remote/ssh_fixture.h"

namespace lockstep::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Json = nlohmann::json;
namespace fs = std::filesystem;

// "status: found" of every result of this name.
std::vector<std::string> results(const Json& report, const std::string& name) {
  std::vector<std::string> texts;
  for (const Json& check : report.at("checks")) {
    if (check.at("name") == name) {
      texts.push_back(fmt::format("{}: {}", check.at("status").get<std::string>(),
                                  check.at("found").get<std::string>()));
    }
  }
  return texts;
}

class DoctorSsh : public SshTest {
 protected:
  void SetUp() override {
    SshTest::SetUp();
    if (!IsSkipped() && !HasFatalFailure()) {
      // A copy: some cases hide it from a machine.
      fs::create_directories(folder_->path() + "/bin");
      fs::create_directories(folder_->path() + "/shared");
      fs::copy_file(lockstep_program(), program(), fs::copy_options::overwrite_existing);
    }
  }

  static std::string program() { return folder_->path() + "/bin/lockstep"; }

  base::Output doctor(std::vector<std::string> arguments, const std::string& ssh_options = "") {
    base::ProcessOptions options{
        .argv = {program(), "doctor"},
        .env = {{"LOCKSTEP_SSH", remote::shell_command(servers_->client()) + ssh_options}}};
    options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
    return base::run_process(nodes_->inside(0, options), base::Deadline::after(kPatience));
  }

  Json examine(std::vector<std::string> arguments = {}, const std::string& ssh_options = "") {
    arguments.insert(arguments.end(), {"--hosts", "node0,node1,node2", "--json"});
    const base::Output output = doctor(std::move(arguments), ssh_options);
    Json report = Json::parse(output.out, nullptr, false);
    EXPECT_TRUE(report.is_object()) << output.out << output.err;
    EXPECT_EQ(report.value("ok", false), output.status.code == 0) << output.out;
    EXPECT_EQ(output.err, "");
    return report;
  }

  // A shell's command inside a machine.
  static void in_node(int node, const std::string& command) {
    const base::Output output = base::run_process(
        nodes_->inside(node, {.argv = {"sh", "-c", command}}), base::Deadline::after(kPatience));
    ASSERT_TRUE(output.status.ok()) << command << output.err;
  }
};

TEST_F(DoctorSsh, AllIsWell) {
  const Json report = examine({"--path", folder_->path() + "/shared"});
  EXPECT_TRUE(report.at("ok")) << report;
  EXPECT_THAT(results(report, "ssh"), ElementsAre(HasSubstr("ok: no password for all 3 hosts")));
  EXPECT_THAT(results(report, "lockstep"), ElementsAre(HasSubstr("on all 3 hosts")));
  EXPECT_THAT(results(report, "clock"), ElementsAre(HasSubstr("ok: within ")));
  EXPECT_THAT(results(report, "host name"),
              ElementsAre("ok: node0 10.88.0.1 (eth0), node1 10.88.0.2 (eth0), node2 10.88.0.3 "
                          "(eth0)"));
  EXPECT_THAT(results(report, "ports"), ElementsAre("ok: each host reaches each other, 6 pairs"));
  EXPECT_THAT(results(report, "storage"), ElementsAre(HasSubstr("ok: ")));
  EXPECT_THAT(report.at("links"), SizeIs(6));
  for (const Json& link : report.at("links")) {
    EXPECT_NE(link.at("from"), link.at("to"));
    EXPECT_GT(link.at("rtt_us"), 0);
    EXPECT_GT(link.at("gb_per_s"), 0);
  }
  EXPECT_TRUE(fs::is_empty(folder_->path() + "/shared"));
  EXPECT_TRUE(wait_until([] { return nodes_->processes(0).size() == 1; }));  // the ssh server
}

TEST_F(DoctorSsh, BlockedPairsAreNamed) {
  in_node(1, "ip route add prohibit 10.88.0.3");
  const Json report = examine();
  in_node(1, "ip route del prohibit 10.88.0.3");
  EXPECT_THAT(results(report, "ports"),
              ElementsAre(AllOf(HasSubstr("PROBLEM: node1 cannot reach node2 at 10.88.0.3:")),
                          AllOf(HasSubstr("PROBLEM: node2 cannot reach node1 at 10.88.0.2:"),
                                HasSubstr("no answer within 2 s"))));
  EXPECT_THAT(report.at("links"), SizeIs(4));
}

TEST_F(DoctorSsh, HostThatIsCutOffDoesNotHideTheOthers) {
  nodes_->cut_link(2);
  const Json report = examine({}, " -o ConnectTimeout=1");
  nodes_->mend_link(2);
  EXPECT_THAT(results(report, "ssh"),
              ElementsAre(HasSubstr("PROBLEM: cannot reach node2 by ssh: ")));
  EXPECT_THAT(results(report, "ports"), ElementsAre("ok: each host reaches each other, 2 pairs"));
  EXPECT_THAT(report.at("links"), SizeIs(2));
}

TEST_F(DoctorSsh, NameAtLoopbackIsNoted) {
  const std::string all =
      "127.0.0.1 localhost\n10.88.0.1 node0\n10.88.0.2 node1\n10.88.0.3 node2\n";
  nodes_->write_hosts(1, "127.0.0.1 localhost\n127.0.1.1 node1\n");
  const Json report = examine();
  nodes_->write_hosts(1, all);
  EXPECT_TRUE(report.at("ok"));
  EXPECT_THAT(results(report, "host name"),
              ElementsAre("note: node1 calls itself node1, which is 127.0.1.1 there"));
}

TEST_F(DoctorSsh, NameThatDoesNotResolveIsAProblem) {
  const std::string all =
      "127.0.0.1 localhost\n10.88.0.1 node0\n10.88.0.2 node1\n10.88.0.3 node2\n";
  nodes_->write_hosts(2, "127.0.0.1 localhost\n");
  const Json report = examine();
  nodes_->write_hosts(2, all);
  EXPECT_THAT(results(report, "host name"),
              ElementsAre(HasSubstr("PROBLEM: node2 calls itself node2, which does not resolve")));
}

TEST_F(DoctorSsh, StorageThatOneHostDoesNotShareIsAProblem) {
  const std::string shared = folder_->path() + "/shared";
  in_node(1, "mount -t tmpfs none " + shared);
  const Json report = examine({"--path", shared});
  in_node(1, "umount " + shared);
  EXPECT_THAT(results(report, "storage"),
              ElementsAre(HasSubstr("PROBLEM: node1 does not see in " + shared +
                                    " what node0 wrote there: ")));
  EXPECT_THAT(results(examine({"--path", "/no/such/folder"}), "storage"),
              ElementsAre(HasSubstr("PROBLEM: node0 cannot write in /no/such/folder: ")));
}

TEST_F(DoctorSsh, ProgramsAreCompared) {
  const std::string bin = folder_->path() + "/bin";
  in_node(1, "mount -t tmpfs none " + bin);
  in_node(2, "cp " + program() + " /run/lockstep; mount -t tmpfs none " + bin +
                 "; cp /run/lockstep " + bin + "; echo >> " + program());
  Json report = examine();
  EXPECT_THAT(results(report, "ssh"), ElementsAre("PROBLEM: there is no lockstep on node1"));
  EXPECT_THAT(results(report, "lockstep"), ElementsAre(HasSubstr("note: node2 has another build")));
  const std::string old = folder_->file(
      "old",
      "#!/bin/sh\n"
      "printf '\\001lockstep is ready\\n'\n"
      "while read -r line; do\n"
      "  echo '{\"version\":\"9.9.9\",\"build\":\"x\",\"name\":\"node1\",\"addresses\":[],"
      "\"error_of_name\":\"\",\"torch\":\"\"}'\n"
      "done\n",
      0755);
  in_node(1, "cp " + old + " " + program());
  report = examine();
  in_node(1, "umount " + bin);
  in_node(2, "umount " + bin);
  EXPECT_THAT(results(report, "ssh"),
              ElementsAre(HasSubstr("PROBLEM: node1 was not examined: its lockstep is 9.9.9")));
  EXPECT_THAT(results(report, "lockstep"),
              ElementsAre(HasSubstr("PROBLEM: node1 has version 9.9.9, others have 0."),
                          HasSubstr("note: node2 has another build")));
}

TEST_F(DoctorSsh, TableShowsChecksAndLinks) {
  const std::string hostfile = folder_->file("hosts", "node1 slots=4\nroot@node2\n");
  const base::Output output = doctor({"--hostfile", hostfile});
  EXPECT_EQ(output.status.code, 0) << output.out << output.err;
  EXPECT_THAT(output.out,
              AllOf(HasSubstr("ok       ssh "), HasSubstr("round trip"),
                    HasSubstr("node1 -> root@node2"), HasSubstr("root@node2 -> node1")));
}

TEST(DoctorHosts, OfThisHostNeedsNoSsh) {
  const base::Output output = run_lockstep({"doctor", "--hosts", "localhost,127.0.0.1", "--json"},
                                           {{"LOCKSTEP_SSH", "/no/such/ssh"}});
  EXPECT_EQ(output.status.code, 0) << output.out << output.err;
  EXPECT_THAT(Json::parse(output.out).at("links"), SizeIs(2));
}

TEST(DoctorHosts, MissingSshIsSaid) {
  const base::Output output =
      run_lockstep({"doctor", "--hosts", "192.0.2.1"}, {{"LOCKSTEP_SSH", "/no/such/ssh"}});
  EXPECT_EQ(output.status.code, 1);
  EXPECT_THAT(output.out, AllOf(HasSubstr("PROBLEM"), HasSubstr("cannot start /no/such/ssh"),
                                HasSubstr("LOCKSTEP_SSH")));
}

TEST(DoctorHosts, MistakesAreOneSentence) {
  const std::pair<std::vector<std::string>, std::string> mistakes[] = {
      {{"--hosts", "a,,b"}, "--hosts: \"\" is not a host"},
      {{"--hosts", "a", "--hostfile", "b"}, "--hosts and --hostfile exclude each other"},
      {{"--hostfile", "/no/such/file"}, "/no/such/file: No such file or directory"},
      {{"--path", "/x"}, "--path is about several hosts"},
      {{"--hosts", "localhost", "--path", "x"}, "--path x is not absolute"},
  };
  for (auto [arguments, says] : mistakes) {
    arguments.insert(arguments.begin(), "doctor");
    const base::Output output = run_lockstep(arguments);
    EXPECT_NE(output.status.code, 0);
    EXPECT_THAT(output.err, HasSubstr(says));
    EXPECT_EQ(lines(output.err).size(), 1u) << output.err;
  }
}

TEST(DoctorServe, AnswersGarbageWithAnErrorAndEndsWithItsInput) {
  base::FdPair input = base::make_pipe();
  const std::string questions =
      "garbage\n"
      "{}\n"
      "[1]\n"
      "{\"do\": \"fly\"}\n"
      "{\"do\": \"reach\", \"to\": [{\"address\": \"x\", \"port\": -1, \"token\": 7}]}\n"
      "{\"do\": \"listen\", \"interface\": \"none0\", \"address\": \"\"}\n"
      "{\"do\": \"time\"}\n";
  base::write_all(input.write.get(), questions.data(), questions.size());
  input.write.reset();
  const base::Output output = base::run_process(
      {.argv = {lockstep_program(), "doctor", "--serve"}, .stdin_fd = input.read.get()},
      base::Deadline::after(kPatience));
  EXPECT_EQ(output.status.code, 0);
  const auto answers = lines(output.out);
  ASSERT_EQ(answers.size(), 8u) << output.out;  // the first says that it is ready
  for (size_t i = 1; i < 7; ++i) {
    EXPECT_TRUE(Json::parse(answers[i]).contains("error")) << answers[i];
  }
  EXPECT_THAT(answers[4], HasSubstr("there is no request fly"));
  EXPECT_THAT(answers[6], HasSubstr("there is no interface none0"));
  EXPECT_TRUE(Json::parse(answers[7]).contains("time_ns"));
}

}  // namespace
}  // namespace lockstep::test
