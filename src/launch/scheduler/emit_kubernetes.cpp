#include <algorithm>
#include <cctype>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "base/secret.h"
#include "base/text/utf8.h"
#include "launch/scheduler/emit.h"

namespace lockstep::launch {

namespace {

constexpr size_t kMaxKubernetesName =
    50;  // a pod's host name is this, '-' and its number, at most 63 letters
constexpr int kPort = 29400;

// A YAML string: a JSON string is one, but for letters that YAML does not want to see as they are.
std::string yaml_string(const std::string& text) {
  if (!base::is_utf8(text)) {
    throw UsageError("--emit kubernetes: an argument is not UTF-8, which YAML must be: {}", text);
  }
  const std::string json = nlohmann::json(text).dump();
  std::string yaml;
  for (size_t at = 0; at < json.size(); ++at) {
    const auto byte = static_cast<unsigned char>(json[at]);
    const auto next = static_cast<unsigned char>(at + 1 < json.size() ? json[at + 1] : '\0');
    const std::string three = json.substr(at, 3);
    if (byte == 0x7f) {
      yaml += "\\x7f";
    } else if (byte == 0xc2 && next < 0xa0) {
      yaml += fmt::format("\\x{:02x}", next);
      at += 1;
    } else if (three == "\u2028" || three == "\u2029" || three == "\ufeff") {
      yaml += three == "\u2028" ? "\\u2028" : three == "\u2029" ? "\\u2029" : "\\ufeff";
      at += 2;
    } else {
      yaml += json[at];
    }
  }
  return yaml;
}

// In a command, Kubernetes replaces $(NAME); $$ is a dollar.
std::string yaml_argument(const std::string& text) {
  std::string escaped;
  for (const char letter : text) {
    escaped += letter == '$' ? "$$" : std::string(1, letter);
  }
  return yaml_string(escaped);
}

void check_kubernetes_options(const EmitOptions& options) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  };
  const std::string& name = options.job_name;
  if (name.empty() || name.size() > kMaxKubernetesName || name.front() < 'a' ||
      name.back() == '-' || !std::all_of(name.begin(), name.end(), is_plain)) {
    throw UsageError(
        "--emit kubernetes: '{}' is no job name; it becomes a host's, so use up to {} "
        "small letters, digits and '-', a letter first",
        name, kMaxKubernetesName);
  }
  check_emit_options(options, "kubernetes");
  if (options.max_nodes > options.num_nodes) {
    throw UsageError(
        "--emit kubernetes: an Indexed Job has a fixed number of pods, which all must succeed, and "
        "--nnodes {}:{} is a range; give --nnodes N",
        options.num_nodes, options.max_nodes);
  }
  if (options.image.empty()) {
    throw UsageError(
        "--emit kubernetes needs --image: registry/name:tag of a container image with "
        "{} and the program in it",
        options.program);
  }
  if (options.image.ends_with(".sqsh")) {
    throw UsageError(
        "--emit kubernetes: --image {} is a squashfs file; Kubernetes pulls container "
        "images: name one, registry/name:tag",
        options.image);
  }
}

struct Mount {
  std::string source;
  std::string target;
  bool is_read_only = false;
};

Mount parse_mount(const std::string& text) {
  Mount mount;
  const size_t first = text.find(':');
  const size_t second = first == std::string::npos ? first : text.find(':', first + 1);
  if (first != std::string::npos) {
    mount.source = text.substr(0, first);
    mount.target = text.substr(first + 1, second - first - 1);
  }
  mount.is_read_only = second != std::string::npos && text.substr(second) == ":ro";
  if (mount.source.empty() || !mount.target.starts_with('/') ||
      (second != std::string::npos && !mount.is_read_only)) {
    throw UsageError("--mount {} is not SRC:DST or SRC:DST:ro with a DST that begins with /", text);
  }
  return mount;
}

std::string secret_and_service(const EmitOptions& options) {
  return fmt::format(
      R"(# Written by `lockstep run --emit kubernetes`. Start it: kubectl apply -f FILE
# Whoever has the secret can join the job: keep this file to yourself, and make a new one per job.
apiVersion: v1
kind: Secret
metadata:
  name: {name}
type: Opaque
stringData:
  job-secret: {secret}
---
# Gives each pod its name, also before it is ready.
apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    job-name: {name}
  ports:
    - port: {port}
---
)",
      fmt::arg("name", yaml_string(options.job_name)),
      fmt::arg("secret", yaml_string(base::make_secret())), fmt::arg("port", kPort));
}

// Ranks that fail are lockstep's to restart. A pod that is gone is not: the Job must make another,
// which joins the others in place of it.
std::string failure_policy(const EmitOptions& options) {
  if (options.max_restarts == 0) {
    return "  backoffLimit: 0  # a pod that is lost ends the job; --max-restarts would replace "
           "it\n";
  }
  return fmt::format(
      R"(  backoffLimit: {}  # pods that are lost and replaced: each costs a restart of all ranks
  podFailurePolicy:
    rules:
      - action: Ignore  # evicted, preempted, its node drained: another pod takes its place
        onPodConditions:
          - type: DisruptionTarget
      - action: FailJob  # lockstep gave up: its restarts are used up
        onExitCodes:
          containerName: lockstep
          operator: NotIn
          values: [0]
)",
      options.max_restarts);
}

std::string job_head(const EmitOptions& options) {
  std::string text = fmt::format(
      R"(apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
spec:
  completionMode: Indexed  # pod i is node i
  completions: {nodes}
  parallelism: {nodes}
{failures})",
      fmt::arg("name", yaml_string(options.job_name)), fmt::arg("nodes", options.num_nodes),
      fmt::arg("failures", failure_policy(options)));
  if (options.time_limit.count() > 0) {
    text += fmt::format("  activeDeadlineSeconds: {}\n", options.time_limit.count());
  }
  return text + fmt::format(
                    R"(  template:
    spec:
      subdomain: {name}
      restartPolicy: Never
      terminationGracePeriodSeconds: {grace}  # SIGTERM: checkpoint and stop
      containers:
        - name: lockstep
          image: {image}
)",
                    fmt::arg("name", yaml_string(options.job_name)),
                    fmt::arg("grace", options.stop_grace.count()),
                    fmt::arg("image", yaml_string(options.image)));
}

std::string container_command(const EmitOptions& options) {
  std::vector<std::string> words{options.program,    "run",
                                 "--rdzv-backend",   "static",
                                 "--rdzv-id",        options.job_name,
                                 "--master-addr",    fmt::format("{0}-0.{0}", options.job_name),
                                 "--master-port",    std::to_string(kPort),
                                 "--nnodes",         std::to_string(options.num_nodes),
                                 "--nproc-per-node", options.procs_per_node,
                                 "--stop-grace",     std::to_string(options.stop_grace.count())};
  words.insert(words.end(), options.flags.begin(), options.flags.end());
  std::string text = "          command:\n";
  for (const auto& word : words) {
    text += fmt::format("            - {}\n", yaml_argument(word));
  }
  // Kubernetes sets the variable in each pod of an Indexed Job, and puts its value here.
  text += "            - \"--node-rank=$(JOB_COMPLETION_INDEX)\"\n            - \"--\"\n";
  for (const auto& word : options.command) {
    text += fmt::format("            - {}\n", yaml_argument(word));
  }
  return text;
}

std::string container_rest(const EmitOptions& options, const std::vector<Mount>& mounts) {
  std::string text = fmt::format(
      R"(          env:
            - name: LOCKSTEP_JOB_SECRET
              valueFrom:
                secretKeyRef:
                  name: {}
                  key: job-secret
)",
      yaml_string(options.job_name));
  if (options.cpus_per_node > 0 || options.gpus_per_node > 0) {
    text += "          resources:\n            limits:\n";
    if (options.cpus_per_node > 0) {
      text += fmt::format("              cpu: {}\n", options.cpus_per_node);
    }
    if (options.gpus_per_node > 0) {
      text += fmt::format("              nvidia.com/gpu: {}\n", options.gpus_per_node);
    }
  }
  text += "          volumeMounts:\n            - name: shm\n              mountPath: /dev/shm\n";
  for (size_t i = 0; i < mounts.size(); ++i) {
    text += fmt::format("            - name: mount-{}\n              mountPath: {}\n", i,
                        yaml_string(mounts[i].target));
    text += mounts[i].is_read_only ? "              readOnly: true\n" : "";
  }
  return text;
}

std::string volumes(const std::vector<Mount>& mounts) {
  std::string text =
      "      volumes:\n"
      "        - name: shm  # NCCL's shared memory; a container's own has 64 MB\n"
      "          emptyDir:\n            medium: Memory\n";
  for (size_t i = 0; i < mounts.size(); ++i) {
    const bool is_folder = mounts[i].source.starts_with('/');
    text += fmt::format("        - name: mount-{}\n          {}\n            {}: {}\n", i,
                        is_folder ? "hostPath:" : "persistentVolumeClaim:",
                        is_folder ? "path" : "claimName", yaml_string(mounts[i].source));
  }
  return text;
}

}  // namespace

std::string emit_kubernetes(const EmitOptions& options) {
  check_kubernetes_options(options);
  std::vector<Mount> mounts;
  std::transform(options.mounts.begin(), options.mounts.end(), std::back_inserter(mounts),
                 parse_mount);
  return secret_and_service(options) + job_head(options) + container_command(options) +
         container_rest(options, mounts) + volumes(mounts);
}

}  // namespace lockstep::launch
