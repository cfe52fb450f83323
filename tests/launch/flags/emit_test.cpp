#include "launch/scheduler/emit.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "base/process/process.h"
#include "launch/flags/emit_flags.h"
#include "support/refusal.h"

namespace lockstep {
namespace {

using test::refusal;
using ::testing::AllOf;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr auto kPatience = std::chrono::seconds(30);

// Every letter that a shell or YAML may take for its own.
const std::vector<std::string> kAwkward{"./train",    "two words",   "it's",     "$HOME $(id) `id`",
                                        "a\nb",       "a\r\n'b'\\c", "",         "\"q\" \\ %s",
                                        "#SBATCH -x", "{rank}",      "--flag=*", "# no: comment",
                                        "- x: [1]",   "한글 \u2028", "\x7f\x01", "$$(A) $$"};

launch::EmitOptions awkward_options() {
  return {.job_name = "train-1",
          .num_nodes = 3,
          .procs_per_node = "4",
          .flags = {"--max-restarts", "2"},
          .command = kAwkward};
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end; (end = text.find(separator, begin)) != std::string::npos; begin = end + 1) {
    parts.push_back(text.substr(begin, end - begin));
  }
  return parts;
}

// Runs the script with a srun that writes the secret and its arguments and fails with 7.
std::vector<std::string> srun_saw(const std::string& script) {
  const std::string srun = "srun() { printf '%s\\0' \"$LOCKSTEP_JOB_SECRET\" \"$@\"; return 7; }\n";
  const base::Output output =
      base::run_process({.argv = {"bash", "-c", srun + script}}, base::Deadline::after(kPatience));
  EXPECT_EQ(output.status.code, 7) << output.err;
  EXPECT_EQ(output.err, "");
  return split(output.out, '\0');
}

TEST(EmitSlurm, TheScriptPassesEveryArgumentAsItIs) {
  const std::string script = launch::emit_slurm(awkward_options());
  const base::Output check =
      base::run_process({.argv = {"bash", "-n", "-c", script}}, base::Deadline::after(kPatience));
  EXPECT_TRUE(check.status.ok()) << check.err;
  EXPECT_THAT(script, Not(HasSubstr("\r")));
  const auto saw = srun_saw(script);
  ASSERT_GT(saw.size(), kAwkward.size());
  EXPECT_THAT(std::vector<std::string>(saw.end() - static_cast<long>(kAwkward.size()), saw.end()),
              ElementsAreArray(kAwkward));
  const std::vector<std::string> run{
      "lockstep", "run", "--nproc-per-node", "4", "--stop-grace", "120", "--max-restarts",
      "2",        "--"};
  EXPECT_THAT(std::vector<std::string>(saw.end() - static_cast<long>(kAwkward.size() + run.size()),
                                       saw.end() - static_cast<long>(kAwkward.size())),
              ElementsAreArray(run));
}

TEST(EmitSlurm, MakesAnotherSecretInEachRun) {
  const std::string script = launch::emit_slurm(awkward_options());
  const std::string first = srun_saw(script).at(0);
  EXPECT_THAT(first, SizeIs(64));
  EXPECT_NE(srun_saw(script).at(0), first);
}

TEST(EmitSlurm, AsksForWhatTheJobNeeds) {
  launch::EmitOptions options = awkward_options();
  EXPECT_THAT(launch::emit_slurm(options), HasSubstr("#SBATCH --exclusive"));
  EXPECT_THAT(launch::emit_slurm(options), Not(HasSubstr("--time")));
  options.cpus_per_node = 16;
  options.gpus_per_node = 4;
  options.time_limit = std::chrono::hours(26) + std::chrono::seconds(61);
  options.image = "/images/job one.sqsh";
  options.mounts = {"/data:/data:ro"};
  const std::string script = launch::emit_slurm(options);
  for (const char* line : {"#!/bin/bash\n", "\n#SBATCH --job-name=train-1\n",
                           "\n#SBATCH --nodes=3\n", "\n#SBATCH --cpus-per-task=16\n",
                           "\n#SBATCH --gpus-per-node=4\n", "\n#SBATCH --time=1-02:01:01\n",
                           " --image '/images/job one.sqsh' --mount /data:/data:ro -- "}) {
    EXPECT_THAT(script, HasSubstr(line));
  }
}

TEST(EmitSlurm, TheGraceIsTheOneItPromises) {
  launch::EmitOptions options = awkward_options();
  options.stop_grace = std::chrono::seconds(300);
  EXPECT_THAT(launch::emit_slurm(options),
              AllOf(HasSubstr("\n#SBATCH --signal=TERM@300\n"), HasSubstr(" --stop-grace 300 "),
                    HasSubstr("300 seconds before the time limit")));
}

TEST(EmitSlurm, ARangeStaysARangeAndTheFolderIsKept) {
  launch::EmitOptions options = awkward_options();
  options.max_nodes = 5;
  options.folder = "/tmp";
  EXPECT_THAT(launch::emit_slurm(options),
              AllOf(HasSubstr("\n#SBATCH --nodes=3-5  #"), HasSubstr("\ncd /tmp || exit 1\n")));
  srun_saw(launch::emit_slurm(options));
}

launch::RunFlags flags_for(const std::string& kind) {
  launch::RunFlags flags;
  flags.emit = kind;
  flags.program = {"./train"};
  return flags;
}

TEST(EmitOptions, WhatTheSchedulerDecidesIsRefused) {
  const auto says = [](void (*change)(launch::RunFlags&)) {
    launch::RunFlags flags = flags_for("slurm");
    change(flags);
    return refusal([&] { launch::emit_options(flags, {}); });
  };
  EXPECT_EQ(says([](launch::RunFlags&) {}), "none");
  EXPECT_THAT(says([](launch::RunFlags& f) { f.hosts = "a,b"; }),
              AllOf(HasSubstr("--hosts would be the same on every node"), HasSubstr("--nnodes N")));
  EXPECT_THAT(says([](launch::RunFlags& f) { f.node_rank = "1"; }),
              HasSubstr("--node-rank would be"));
  EXPECT_THAT(says([](launch::RunFlags& f) { f.standalone = true; }),
              HasSubstr("--standalone would be"));
  EXPECT_THAT(says([](launch::RunFlags& f) { f.local_nodes = "2"; }),
              HasSubstr("--local-nodes would be"));
  EXPECT_THAT(says([](launch::RunFlags& f) { f.rdzv_endpoint = "a:1"; }),
              HasSubstr("--rdzv-endpoint"));
  EXPECT_THAT(says([](launch::RunFlags& f) { f.hostfile = "hosts"; }),
              HasSubstr("--hostfile would be"));
  EXPECT_THAT(says([](launch::RunFlags& f) { f.master_addr = "a"; }),
              HasSubstr("--master-addr would be"));
  EXPECT_THAT(says([](launch::RunFlags& f) { f.master_port = "1"; }),
              HasSubstr("--master-port would be"));
  EXPECT_THAT(says([](launch::RunFlags& f) { f.rdzv_backend = "c10d"; }),
              HasSubstr("--rdzv-backend"));
  EXPECT_THAT(says([](launch::RunFlags& f) { f.env = {"A=1"}; }), HasSubstr("--env would be"));
  EXPECT_THAT(says([](launch::RunFlags& f) { f.nproc_per_node = "gpu"; }),
              HasSubstr("give --gpus-per-node N too"));
  const auto more_ranks_than_gpus = [](launch::RunFlags& f) {
    f.nproc_per_node = "4";
    f.gpus_per_node = "2";
  };
  EXPECT_THAT(
      says(more_ranks_than_gpus),
      AllOf(HasSubstr("4 ranks on each node and --gpus-per-node 2"), HasSubstr("--share-gpu")));
  EXPECT_THAT(says([](launch::RunFlags& f) { f.nproc_per_node = "many"; }),
              HasSubstr("many is unknown"));
  EXPECT_THAT(says([](launch::RunFlags& f) { f.max_restarts = "-1"; }),
              HasSubstr("--max-restarts -1"));
}

// Four ranks on two GPUs, as a scheduler starts them.
TEST(EmitOptions, RanksThatShareGpusAreToldSo) {
  for (const std::string kind : {"slurm", "kubernetes"}) {
    launch::RunFlags flags = flags_for(kind);
    flags.nproc_per_node = "4";
    flags.gpus_per_node = "2";
    flags.share_gpu = true;
    flags.image = kind == "slurm" ? "" : "registry/job:1";
    const launch::EmitOptions options = launch::emit_options(
        flags, {"--emit=" + kind, "--nproc-per-node=4", "--gpus-per-node=2", "--share-gpu"});
    EXPECT_THAT(options.flags, ElementsAreArray({"--share-gpu"}));
    EXPECT_THAT(kind == "slurm" ? launch::emit_slurm(options) : launch::emit_kubernetes(options),
                HasSubstr("--share-gpu"));
  }
}

TEST(EmitOptions, AreWhatTheFlagsSay) {
  launch::RunFlags flags = flags_for("slurm");
  flags.nnodes = "2:4";
  flags.nproc_per_node = "gpu";
  flags.gpus_per_node = "8";
  flags.stop_grace = "300.5";
  flags.max_restarts = "2";
  const launch::EmitOptions options =
      launch::emit_options(flags, {"--nnodes=2:4", "--nproc-per-node=gpu", "--gpus-per-node=8",
                                   "--stop-grace=300.5", "--log-dir=logs", "--emit=slurm"});
  EXPECT_EQ(options.num_nodes, 2);
  EXPECT_EQ(options.max_nodes, 4);
  EXPECT_EQ(options.gpus_per_node, 8);
  EXPECT_EQ(options.stop_grace, std::chrono::seconds(301));
  EXPECT_EQ(options.max_restarts, 2);
  EXPECT_TRUE(options.program.starts_with('/')) << options.program;
  EXPECT_EQ(options.folder, std::filesystem::current_path());
  EXPECT_THAT(options.flags, ElementsAreArray({"--log-dir=logs"}));
  EXPECT_THAT(launch::emit_slurm(options),
              AllOf(HasSubstr("--gpus-per-node=8\n"), HasSubstr("--nodes=2-4"),
                    HasSubstr(options.program + " run")));
  EXPECT_EQ(launch::emit_options(flags_for("kubernetes"), {}).program, "lockstep")
      << "an image has its own";
}

TEST(EmitSlurm, RefusesWhatItCannotSay) {
  const auto says = [](const launch::EmitOptions& options) {
    return refusal([&] { launch::emit_slurm(options); });
  };
  EXPECT_THAT(says({.job_name = "a b", .command = {"x"}}), HasSubstr("'a b' is no job name"));
  EXPECT_THAT(says({.job_name = "", .command = {"x"}}), HasSubstr("'' is no job name"));
  EXPECT_THAT(says({.job_name = "a\n#SBATCH", .command = {"x"}}), HasSubstr("is no job name"));
  EXPECT_EQ(says({.num_nodes = 0, .command = {"x"}}),
            "--emit slurm: 0 nodes are not in [1, 10000]");
  EXPECT_EQ(says({}), "--emit slurm: no program to start; name it after the flags");
}

// The documents of a manifest, by Python's YAML; nothing if Python has none.
std::optional<nlohmann::json> parse_yaml(const std::string& text) {
  const std::string script =
      "import sys, json\n"
      "try:\n    import yaml\nexcept ImportError:\n    sys.exit(3)\n"
      "json.dump(list(yaml.safe_load_all(sys.argv[1])), sys.stdout)\n";
  const base::Output output = base::run_process({.argv = {"/usr/bin/python3", "-c", script, text}},
                                                base::Deadline::after(kPatience));
  if (output.status.code == 3) {
    return std::nullopt;
  }
  EXPECT_TRUE(output.status.ok()) << output.err << text;
  return nlohmann::json::parse(output.out);
}

// As the kubelet does: $(NAME) is replaced, $$ is a dollar.
std::string expanded(const std::string& text) {
  std::string result;
  for (size_t at = 0; at < text.size(); ++at) {
    EXPECT_NE(text.substr(at, 2), "$(") << text;
    result += text[at];
    at += text.substr(at, 2) == "$$" ? 1 : 0;
  }
  return result;
}

TEST(EmitKubernetes, TheManifestPassesEveryArgumentAsItIs) {
  launch::EmitOptions options = awkward_options();
  options.image = "registry:5000/team/train:1";
  const auto documents = parse_yaml(launch::emit_kubernetes(options));
  if (!documents) {
    GTEST_SKIP() << "/usr/bin/python3 has no yaml";
  }
  ASSERT_EQ(documents->size(), 3u);
  const auto& pod = documents->at(2)["spec"]["template"]["spec"];
  const auto command = pod["containers"][0]["command"].get<std::vector<std::string>>();
  const auto dashes = std::find(command.begin(), command.end(), "--");
  ASSERT_NE(dashes, command.end());
  std::vector<std::string> arguments;
  std::transform(dashes + 1, command.end(), std::back_inserter(arguments), expanded);
  EXPECT_THAT(arguments, ElementsAreArray(kAwkward));
  EXPECT_THAT(
      std::vector<std::string>(command.begin(), dashes),
      ElementsAreArray({"lockstep", "run", "--rdzv-backend", "static", "--rdzv-id", "train-1",
                        "--master-addr", "train-1-0.train-1", "--master-port", "29400", "--nnodes",
                        "3", "--nproc-per-node", "4", "--stop-grace", "120", "--max-restarts", "2",
                        "--node-rank=$(JOB_COMPLETION_INDEX)"}));
}

TEST(EmitKubernetes, TheThreeDocumentsBelongTogether) {
  launch::EmitOptions options = awkward_options();
  options.max_restarts = 2;
  options.stop_grace = std::chrono::seconds(300);
  options.image = "train:1";
  options.cpus_per_node = 16;
  options.gpus_per_node = 8;
  options.time_limit = std::chrono::hours(1);
  options.mounts = {"/nfs/data:/data:ro", "scratch:/checkpoints"};
  const auto documents = parse_yaml(launch::emit_kubernetes(options));
  if (!documents) {
    GTEST_SKIP() << "/usr/bin/python3 has no yaml";
  }
  const auto& secret = documents->at(0);
  const auto& service = documents->at(1);
  const auto& job = documents->at(2)["spec"];
  EXPECT_THAT(secret["stringData"]["job-secret"].get<std::string>(), SizeIs(64));
  EXPECT_EQ(service["spec"]["clusterIP"], "None");
  EXPECT_EQ(service["spec"]["selector"]["job-name"], documents->at(2)["metadata"]["name"]);
  EXPECT_EQ(job["completionMode"], "Indexed");
  EXPECT_EQ(job["completions"], 3);
  EXPECT_EQ(job["parallelism"], 3);
  EXPECT_EQ(job["activeDeadlineSeconds"], 3600);
  // Two restarts of all ranks: a pod that is evicted must be replaced, or nobody could restart.
  EXPECT_EQ(job["backoffLimit"], 2);
  const auto& rules = job["podFailurePolicy"]["rules"];
  EXPECT_EQ(rules[0]["action"], "Ignore");
  EXPECT_EQ(rules[0]["onPodConditions"][0]["type"], "DisruptionTarget");
  EXPECT_EQ(rules[1]["action"], "FailJob");
  EXPECT_EQ(
      rules[1]["onExitCodes"],
      (nlohmann::json{{"containerName", "lockstep"}, {"operator", "NotIn"}, {"values", {0}}}));
  const auto& pod = job["template"]["spec"];
  EXPECT_EQ(pod["subdomain"], service["metadata"]["name"]);
  EXPECT_EQ(pod["restartPolicy"], "Never");
  EXPECT_EQ(pod["terminationGracePeriodSeconds"], 300);
  const auto& container = pod["containers"][0];
  EXPECT_EQ(container["env"][0]["valueFrom"]["secretKeyRef"],
            (nlohmann::json{{"name", secret["metadata"]["name"]}, {"key", "job-secret"}}));
  EXPECT_EQ(container["resources"]["limits"], (nlohmann::json{{"cpu", 16}, {"nvidia.com/gpu", 8}}));
  EXPECT_EQ(container["volumeMounts"][1],
            (nlohmann::json{{"name", "mount-0"}, {"mountPath", "/data"}, {"readOnly", true}}));
  EXPECT_EQ(pod["volumes"][1]["hostPath"]["path"], "/nfs/data");
  EXPECT_EQ(pod["volumes"][2]["persistentVolumeClaim"]["claimName"], "scratch");
}

TEST(EmitKubernetes, RefusesWhatItCannotSay) {
  const auto says = [](launch::EmitOptions options) {
    return refusal([&] { launch::emit_kubernetes(options); });
  };
  const launch::EmitOptions right{.image = "train:1", .command = {"x"}};
  EXPECT_EQ(says(right), "none");
  for (const char* name : {"", "Train", "1st", "a_b", "a-", "a.b"}) {
    launch::EmitOptions options = right;
    options.job_name = name;
    EXPECT_THAT(says(options), HasSubstr(fmt::format("'{}' is no job name", name)));
  }
  EXPECT_THAT(says({.num_nodes = 10001, .image = "a", .command = {"x"}}),
              HasSubstr("10001 nodes are not in [1, 10000]"));
  EXPECT_THAT(says({.num_nodes = 2, .max_nodes = 4, .image = "a", .command = {"x"}}),
              HasSubstr("--nnodes 2:4 is a range; give --nnodes N"));
  EXPECT_THAT(says({.image = "a"}), HasSubstr("no program to start"));
  EXPECT_THAT(says({.command = {"x"}}), HasSubstr("needs --image"));
  EXPECT_THAT(says({.image = "job.sqsh", .command = {"x"}}), HasSubstr("is a squashfs file"));
  EXPECT_THAT(says({.image = "a", .command = {"\xff"}}), HasSubstr("is not UTF-8"));
  for (const char* mount : {"", "/a", ":/b", "/a:b", "/a:/b:rw", "/a:/b:ro:ro"}) {
    launch::EmitOptions options = right;
    options.mounts = {mount};
    EXPECT_THAT(says(options), HasSubstr("is not SRC:DST or SRC:DST:ro"));
  }
}

TEST(EmitKubernetes, WithoutRestartsALostPodEndsTheJob) {
  const std::string manifest = launch::emit_kubernetes({.image = "train:1", .command = {"x"}});
  EXPECT_THAT(manifest, HasSubstr("backoffLimit: 0"));
  EXPECT_THAT(manifest, Not(HasSubstr("podFailurePolicy")));
}

TEST(EmitKubernetes, EachManifestHasItsOwnSecret) {
  const launch::EmitOptions options{.image = "train:1", .command = {"x"}};
  EXPECT_NE(launch::emit_kubernetes(options), launch::emit_kubernetes(options));
}

}  // namespace
}  // namespace lockstep
