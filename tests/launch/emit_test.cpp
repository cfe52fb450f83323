#include "launch/emit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "base/process.h"
#include "support/refusal.h"

namespace lockstep {
namespace {

using test::refusal;
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

EmitOptions awkward_options() {
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
  const Output output =
      run_process({.argv = {"bash", "-c", srun + script}}, Deadline::after(kPatience));
  EXPECT_EQ(output.status.code, 7) << output.err;
  EXPECT_EQ(output.err, "");
  return split(output.out, '\0');
}

TEST(EmitSlurm, TheScriptPassesEveryArgumentAsItIs) {
  const std::string script = emit_slurm(awkward_options());
  const Output check =
      run_process({.argv = {"bash", "-n", "-c", script}}, Deadline::after(kPatience));
  EXPECT_TRUE(check.status.ok()) << check.err;
  EXPECT_THAT(script, Not(HasSubstr("\r")));
  const auto saw = srun_saw(script);
  ASSERT_GT(saw.size(), kAwkward.size());
  EXPECT_THAT(std::vector<std::string>(saw.end() - static_cast<long>(kAwkward.size()), saw.end()),
              ElementsAreArray(kAwkward));
  const std::vector<std::string> run{"lockstep", "run", "--nproc-per-node", "4", "--max-restarts",
                                     "2",        "--"};
  EXPECT_THAT(std::vector<std::string>(saw.end() - static_cast<long>(kAwkward.size() + run.size()),
                                       saw.end() - static_cast<long>(kAwkward.size())),
              ElementsAreArray(run));
}

TEST(EmitSlurm, MakesAnotherSecretInEachRun) {
  const std::string script = emit_slurm(awkward_options());
  const std::string first = srun_saw(script).at(0);
  EXPECT_THAT(first, SizeIs(64));
  EXPECT_NE(srun_saw(script).at(0), first);
}

TEST(EmitSlurm, AsksForWhatTheJobNeeds) {
  EmitOptions options = awkward_options();
  EXPECT_THAT(emit_slurm(options), HasSubstr("#SBATCH --exclusive"));
  EXPECT_THAT(emit_slurm(options), Not(HasSubstr("--time")));
  options.cpus_per_node = 16;
  options.gpus_per_node = 4;
  options.time_limit = std::chrono::hours(26) + std::chrono::seconds(61);
  options.image = "/images/job one.sqsh";
  options.mounts = {"/data:/data:ro"};
  const std::string script = emit_slurm(options);
  for (const char* line : {"#!/bin/bash\n", "\n#SBATCH --job-name=train-1\n",
                           "\n#SBATCH --nodes=3\n", "\n#SBATCH --cpus-per-task=16\n",
                           "\n#SBATCH --gpus-per-node=4\n", "\n#SBATCH --time=1-02:01:01\n",
                           " --image '/images/job one.sqsh' --mount /data:/data:ro -- "}) {
    EXPECT_THAT(script, HasSubstr(line));
  }
}

TEST(EmitSlurm, RefusesWhatItCannotSay) {
  const auto says = [](const EmitOptions& options) {
    return refusal([&] { emit_slurm(options); });
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
  const Output output =
      run_process({.argv = {"/usr/bin/python3", "-c", script, text}}, Deadline::after(kPatience));
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
  EmitOptions options = awkward_options();
  options.image = "registry:5000/team/train:1";
  const auto documents = parse_yaml(emit_kubernetes(options));
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
  EXPECT_THAT(std::vector<std::string>(command.begin(), dashes),
              ElementsAreArray({"lockstep", "run", "--rdzv-backend", "static", "--rdzv-id",
                                "train-1", "--master-addr", "train-1-0.train-1", "--master-port",
                                "29400", "--nnodes", "3", "--nproc-per-node", "4", "--max-restarts",
                                "2", "--node-rank=$(JOB_COMPLETION_INDEX)"}));
}

TEST(EmitKubernetes, TheThreeDocumentsBelongTogether) {
  EmitOptions options = awkward_options();
  options.image = "train:1";
  options.cpus_per_node = 16;
  options.gpus_per_node = 8;
  options.time_limit = std::chrono::hours(1);
  options.mounts = {"/nfs/data:/data:ro", "scratch:/checkpoints"};
  const auto documents = parse_yaml(emit_kubernetes(options));
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
  const auto& pod = job["template"]["spec"];
  EXPECT_EQ(pod["subdomain"], service["metadata"]["name"]);
  EXPECT_EQ(pod["restartPolicy"], "Never");
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
  const auto says = [](EmitOptions options) { return refusal([&] { emit_kubernetes(options); }); };
  const EmitOptions right{.image = "train:1", .command = {"x"}};
  EXPECT_EQ(says(right), "none");
  for (const char* name : {"", "Train", "1st", "a_b", "a-", "a.b"}) {
    EmitOptions options = right;
    options.job_name = name;
    EXPECT_THAT(says(options), HasSubstr(fmt::format("'{}' is no job name", name)));
  }
  EXPECT_THAT(says({.num_nodes = 10001, .image = "a", .command = {"x"}}),
              HasSubstr("10001 nodes are not in [1, 10000]"));
  EXPECT_THAT(says({.image = "a"}), HasSubstr("no program to start"));
  EXPECT_THAT(says({.command = {"x"}}), HasSubstr("needs --image"));
  EXPECT_THAT(says({.image = "job.sqsh", .command = {"x"}}), HasSubstr("is a squashfs file"));
  EXPECT_THAT(says({.image = "a", .command = {"\xff"}}), HasSubstr("is not UTF-8"));
  for (const char* mount : {"", "/a", ":/b", "/a:b", "/a:/b:rw", "/a:/b:ro:ro"}) {
    EmitOptions options = right;
    options.mounts = {mount};
    EXPECT_THAT(says(options), HasSubstr("is not SRC:DST or SRC:DST:ro"));
  }
}

TEST(EmitKubernetes, EachManifestHasItsOwnSecret) {
  const EmitOptions options{.image = "train:1", .command = {"x"}};
  EXPECT_NE(emit_kubernetes(options), emit_kubernetes(options));
}

}  // namespace
}  // namespace lockstep
