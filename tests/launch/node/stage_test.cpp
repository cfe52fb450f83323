// Files that are there before the ranks start, or a job that does not start.

#include "launch/node/stage.h"

#include <filesystem>
#include <map>
#include <signal.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/faulty_server.h"
#include "storage/storage.h"
#include "support/job.h"
#include "support/nodes.h"
#include "support/refusal.h"
#include "support/s3_server.h"
#include "support/service.h"
#include "support/small_disk.h"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Words = std::vector<std::string>;

// No names of unfinished files.
void expect_no_parts(const std::string& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    EXPECT_FALSE(entry.path().string().ends_with(".lockstep-part")) << entry.path();
  }
}

Words staged_run(const std::string& stage, const std::string& script) {
  return {"run", "--nproc-per-node", "2", "--stage", stage, "--", "sh", "-c", script};
}

TEST(Stage, SaysWhichSideOfTheFlagIsWrong) {
  EXPECT_EQ(launch::parse_stage("s3://models/a:b:/scratch/a").source, "s3://models/a:b");
  EXPECT_EQ(launch::parse_stage("s3://models/a:/scratch/x/../a/").destination, "/scratch/a/");
  EXPECT_EQ(launch::parse_stage("file:///data/x:/y").source, "/data/x");
  EXPECT_EQ(launch::parse_stage("x:y").destination, fs::current_path().string() + "/y");
  const std::pair<const char*, const char*> cases[] = {
      {"/data", "--stage /data names no destination"},
      {"s3://models/gpt2", "names no destination; write SRC:DST"},
      {":/scratch", "the source, before the last colon, is missing"},
      {"/data:", "the destination, after the last colon, is missing"},
      {"gs://models/x:/scratch", "'gs://' is not known"},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_THAT(refusal([text = text] { launch::parse_stage(text); }), HasSubstr(expected));
  }
}

TEST(Stage, KeepsImagesInACache) {
  const auto kept = [](std::map<std::string, std::string> variables, const char* location) {
    const base::Env env([&](const std::string& name) -> std::optional<std::string> {
      return variables.count(name) == 0 ? std::nullopt : std::optional(variables[name]);
    });
    return launch::stage_image(location, env).destination;
  };
  const char* image = "s3://models/jobs/x.sqsh";
  EXPECT_EQ(kept({{"HOME", "/h"}}, image), "/h/.cache/lockstep/images/models/jobs/x.sqsh");
  EXPECT_EQ(kept({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/c"}}, image),
            "/c/lockstep/images/models/jobs/x.sqsh");
  EXPECT_EQ(kept({{"HOME", "/h"}, {"LOCKSTEP_CACHE_DIR", "/d"}}, image),
            "/d/images/models/jobs/x.sqsh");
  EXPECT_THAT(refusal([&] { kept({}, image); }), HasSubstr("says where to keep it"));
  EXPECT_THAT(refusal([&] {
                kept({{"HOME", "/h"}}, "s3://models/a/../../x");
              }),
              HasSubstr("is no path inside it"));
  EXPECT_THAT(refusal([&] {
                kept({{"HOME", "/h"}}, "s3://models");
              }),
              HasSubstr("is no path inside it"));
}

TEST(Stage, FilesAreThereBeforeTheRanksStart) {
  const TempFolder folder;
  fs::create_directory(folder.at("from"));
  folder.file("from/program", "#!/bin/sh\necho \"$RANK has $(cat $1)\"\n", 0755);
  folder.file("from/data", "it");
  const std::string stage = folder.at("from") + ":" + folder.at("to");
  const std::string script = folder.at("to/program ") + folder.at("to/data");
  const base::Output first = run_lockstep(staged_run(stage, script));
  EXPECT_EQ(first.status.shell_code(), 0) << first.err;
  EXPECT_THAT(first.out, AllOf(HasSubstr("0 has it"), HasSubstr("1 has it")));
  EXPECT_THAT(first.err, AllOf(HasSubstr("staged 2 files"), HasSubstr("0 already there")));
  const base::Output second = run_lockstep(staged_run(stage, script));
  EXPECT_THAT(second.out, HasSubstr("1 has it"));
  EXPECT_THAT(second.err, HasSubstr("2 already there"));
}

TEST(Stage, WhatCannotComeIsOneSentence) {
  const TempFolder folder;
  const base::Output output =
      run_lockstep(staged_run(folder.at("absent") + ":" + folder.at("to"), "echo ran"));
  EXPECT_EQ(output.status.shell_code(), 1);
  EXPECT_EQ(output.out, "");
  EXPECT_EQ(lines(output.err).size(), 1u) << output.err;
  EXPECT_THAT(output.err,
              AllOf(HasSubstr("lockstep run: cannot stage on "), HasSubstr(folder.at("absent"))));
}

TEST(Stage, AFullDiskIsOneSentenceAndLeavesNothing) {
  LOCKSTEP_NEEDS("namespaces", disk_refusal());
  const TempFolder folder;
  fs::create_directory(folder.at("from"));
  fs::create_directory(folder.at("to"));
  folder.file("from/large", std::string(300'000, 'x'));
  Words words = staged_run(folder.at("from") + ":" + folder.at("to"), "echo ran");
  words.insert(words.begin(), lockstep_program());
  const base::Output output =
      base::run_process({.argv = on_disk({.folder = folder.at("to"), .size = "128k"}, words)},
                        base::Deadline::after(kPatience));
  EXPECT_EQ(output.status.shell_code(), 1) << output.err;
  EXPECT_EQ(output.out, "left:\n") << "no rank has started, and no part is left";
  EXPECT_EQ(lines(output.err).size(), 1u) << output.err;
  EXPECT_THAT(output.err,
              AllOf(HasSubstr("lockstep run: cannot stage on "), HasSubstr(folder.at("to/large")),
                    HasSubstr("of 300000 bytes"), HasSubstr("No space left on device")));
}

TEST(Stage, IsShownAndPassedOn) {
  const Words flags{"--stage", "s3://models/gpt2:/scratch/gpt2", "--stage", "/a:/b", "train"};
  const auto text = [&](Words words) {
    words.insert(words.begin(), "run");
    words.insert(words.end(), flags.begin(), flags.end());
    const base::Output output = run_lockstep(words);
    EXPECT_EQ(output.status.shell_code(), 0) << output.err;
    return output.out;
  };
  EXPECT_THAT(text({"--dry-run"}),
              AllOf(HasSubstr("on each node: s3://models/gpt2 to /scratch/gpt2\n"),
                    HasSubstr("on each node: /a to /b\n")));
  EXPECT_THAT(text({"--emit", "slurm"}),
              AllOf(HasSubstr("--stage=s3://models/gpt2:/scratch/gpt2 --stage=/a:/b")));
  EXPECT_THAT(text({"--emit", "kubernetes", "--image", "registry/x:1"}),
              HasSubstr("--stage=s3://models/gpt2:/scratch/gpt2"));
  EXPECT_THAT(run_lockstep({"run", "--help"}).out, HasSubstr("--stage SRC:DST"));
}

// A bucket with one object whose bytes never come.
FaultyAnswer endless(const FaultyRequest& request) {
  if (request.method == "HEAD" && request.target.ends_with(".sha256")) {
    return {http_answer(404, {}, "")};
  }
  if (request.method == "HEAD") {
    return {http_answer(200, {"Content-Length: 1000", "ETag: \"v1\""}, "")};
  }
  return {"", true};
}

class StageThatStalls : public ::testing::Test {
 protected:
  StageThatStalls() : server_(endless) {}

  // A job that waits for the bytes.
  std::unique_ptr<Job> start() {
    const int before = server_.num_requests();
    auto job = std::make_unique<Job>(
        Words{"--stage", "s3://models/a:" + folder_.at("to/a"), "--", "echo", "ran"},
        JobPlace{.env = {{"AWS_ENDPOINT_URL", server_.endpoint()}, {"HOME", folder_.path()}},
                 .inside = {}});
    EXPECT_TRUE(wait_until([&] { return server_.num_requests() == before + 4; })) << job->err();
    return job;
  }

  TempFolder folder_;
  FaultyServer server_;
};

TEST_F(StageThatStalls, EndsCleanlyByCtrlC) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const auto job = start();
    job->kill(signal);
    EXPECT_EQ(job->wait().shell_code(), 128 + signal);
    EXPECT_TRUE(job->is_gone());
    EXPECT_THAT(job->out(), Not(HasSubstr("ran")));
    expect_no_parts(folder_.path());
  }
}

TEST_F(StageThatStalls, LeavesNobodyWhenTheLeaderIsKilled) {
  const auto job = start();
  job->kill(SIGKILL);
  job->wait();
  EXPECT_TRUE(job->is_gone());
}

TEST(Stage, BringsFilesFromS3) {
  LOCKSTEP_NEEDS("s3", s3_refusal());
  const TempFolder folder;
  fs::create_directories(folder.at("s3/models/gpt2/deep"));
  folder.file("s3/models/gpt2/a b+c", "one");
  folder.file("s3/models/gpt2/deep/d", std::string(9u << 20, 'x'));
  const S3Server server(folder.at("s3"));
  const std::string stage = "s3://models/gpt2:" + folder.at("to");
  const std::string script = fmt::format("cat '{0}/a b+c'; wc -c < {0}/deep/d", folder.at("to"));
  const base::Output output = run_lockstep(staged_run(stage, script), server.env());
  EXPECT_EQ(output.status.shell_code(), 0) << output.err;
  EXPECT_THAT(output.out, AllOf(HasSubstr("one"), HasSubstr("9437184")));
  EXPECT_THAT(run_lockstep(staged_run(stage, "true"), server.env()).err,
              HasSubstr("2 already there"));

  auto stranger = server.env();
  stranger["AWS_SECRET_ACCESS_KEY"] = "not-the-secret";
  const base::Output denied = run_lockstep(staged_run(stage, "echo ran"), stranger);
  EXPECT_EQ(denied.status.shell_code(), 1);
  EXPECT_EQ(lines(denied.err).size(), 1u) << denied.err;
  EXPECT_THAT(denied.err, AllOf(HasSubstr("cannot stage on"), HasSubstr("s3://models/gpt2"),
                                HasSubstr("access is denied"), Not(HasSubstr("not-the-secret"))));
}

// Where an image from a bucket is kept: in LOCKSTEP_CACHE_DIR, else below HOME.
TEST(Stage, ACacheThatIsFullOrCanOnlyBeReadIsOneSentence) {
  LOCKSTEP_NEEDS("namespaces", disk_refusal());
  LOCKSTEP_NEEDS("s3", s3_refusal());
  const TempFolder folder;
  fs::create_directories(folder.at("s3/models"));
  fs::create_directory(folder.at("disk"));
  folder.file("s3/models/x.sqsh", std::string(300'000, 'x'));
  const S3Server server(folder.at("s3"));
  const auto run = [&](Disk disk, const std::string& variable) {
    disk.folder = folder.at("disk");
    auto env = server.env();
    env[variable] = folder.at("disk");
    const base::Output output =
        base::run_process({.argv = on_disk(disk, {lockstep_program(), "run", "--image",
                                                  "s3://models/x.sqsh", "--", "echo", "ran"}),
                           .env = env},
                          base::Deadline::after(kPatience));
    EXPECT_EQ(output.status.shell_code(), 1) << output.err;
    EXPECT_EQ(output.out, "left:\n");
    EXPECT_EQ(lines(output.err).size(), 1u) << output.err;
    EXPECT_THAT(output.err, HasSubstr("cannot stage on "));
    return output.err;
  };
  EXPECT_THAT(run({.size = "128k"}, "LOCKSTEP_CACHE_DIR"),
              AllOf(HasSubstr(folder.at("disk/images/models/x.sqsh")),
                    HasSubstr("No space left on device")));
  EXPECT_THAT(run({.can_write = false}, "HOME"),
              AllOf(HasSubstr(folder.at("disk/.cache/lockstep/images/models/x.sqsh")),
                    HasSubstr("Read-only file system")));
}

class StageOnNodes : public ::testing::Test {
 protected:
  void SetUp() override {
    LOCKSTEP_NEEDS("namespaces", nodes_refusal());
    nodes_ = std::make_unique<TestNodes>(2);
  }

  std::unique_ptr<Job> start(int node, const std::string& stage) {
    return std::make_unique<Job>(
        Words{"--nnodes=2", "--rdzv-backend=lockstep", "--rdzv-endpoint=node0:29400", "--stage",
              stage, "--", "sh", "-c", "echo $(hostname) has $(cat /run/staged)"},
        JobPlace{
            .env = {{"LOCKSTEP_JOB_SECRET", "0123456789abcdef0123456789abcdef"}},
            .inside = [this, node](base::ProcessOptions o) { return nodes_->inside(node, o); }});
  }

  TempFolder folder_;
  std::unique_ptr<TestNodes> nodes_;
};

TEST_F(StageOnNodes, EachHasItsOwnCopy) {  // /run is the node's own
  const std::string stage = folder_.file("a", "the file") + ":/run/staged";
  const auto head = start(0, stage);
  const auto other = start(1, stage);
  EXPECT_EQ(head->wait().shell_code(), 0) << head->err();
  EXPECT_EQ(other->wait().shell_code(), 0) << other->err();
  EXPECT_THAT(head->out(), HasSubstr("node0 has the file"));
  EXPECT_THAT(other->out(), HasSubstr("node1 has the file"));
  EXPECT_THAT(other->err(), HasSubstr("staged 1 file"));
}

TEST_F(StageOnNodes, OneThatCannotStageEndsTheJob) {
  const base::Output made = base::run_process(
      nodes_->inside(0, {.argv = {"sh", "-c", "echo here > /run/only"}}), base::Deadline::never());
  ASSERT_TRUE(made.status.ok()) << made.err;
  const auto head = start(0, "/run/only:/run/staged");
  const auto other = start(1, "/run/only:/run/staged");
  EXPECT_EQ(head->wait().shell_code(), 1);
  EXPECT_EQ(other->wait().shell_code(), 1);
  for (const auto* job : {&head, &other}) {
    EXPECT_THAT((*job)->err(), AllOf(HasSubstr("cannot stage on node1: "), HasSubstr("/run/only")));
    EXPECT_EQ((*job)->out(), "");
    EXPECT_TRUE((*job)->is_gone());
  }
}

}  // namespace
}  // namespace lockstep::test
