#include "run_flags.h"

#include <algorithm>
#include <cctype>

#include "command_line.h"

namespace lockstep::app {

namespace {

constexpr const char* kRunExamples =
    "Every flag can also be set by a variable, --nnodes by PET_NNODES; the flag wins. Both\n"
    "spellings, --log-dir and --log_dir, are accepted. {rank}, {local_rank} and {world_size} in "
    "the program's "
    "arguments\n"
    "are replaced by each rank's own; \\{rank} stays as {rank}.\n"
    "\n"
    "Examples:\n"
    "  lockstep run --nproc-per-node 4 ./my_program --epochs 3\n"
    "  lockstep run --nproc-per-node 4 --local-nodes 2 ./my_program     two emulated nodes\n"
    "  lockstep run --nproc-per-node gpu --log-dir logs train.py\n"
    "  lockstep run --nproc-per-node 4 --share-gpu ./my_program         four ranks on one GPU\n"
    "  lockstep run --nnodes 2 --node-rank 0 --master-addr node0 ./my_program   the same, with\n"
    "                             --node-rank 1, on the other node\n"
    "  lockstep run --hosts a,b --nproc-per-node 4 ./my_program         over ssh\n"
    "  srun lockstep run ./my_program                                   one task per node\n"
    "  lockstep run --stage s3://models/gpt2:/scratch/gpt2 ./my_program /scratch/gpt2\n"
    "  lockstep run --image job.sqsh --mount /data:/data:ro -- /opt/my_program\n"
    "\n"
    "OMP_NUM_THREADS, if it is unset, is set to the number of this host's cores divided by its "
    "ranks.\n"
    "\n"
    "Exit code: 0 if every rank ends with 0; that of the first rank that fails (128 + signal if a\n"
    "signal killed it); 126 or 127 if the program cannot be started; 2 for a mistake on this "
    "line.\n";

void add(CLI::App& app, const char* name, std::string& value, const char* type,
         const std::string& help, const char* group) {
  // As torchrun: of a flag that is given twice (by a wrapper, say) the last one counts.
  app.add_option(name, value, help)->type_name(type)->group(group)->take_last();
}

void add(CLI::App& app, const char* name, bool& value, const std::string& help, const char* group) {
  app.add_flag(name, value, help)->group(group)->take_last();
}

void add_size_flags(CLI::App& app, launch::RunFlags& flags) {
  const char* group = "How many";
  add(app, "--nproc-per-node", flags.nproc_per_node, "N|auto|cpu|gpu",
      "The number of ranks on each node (1); auto: one per GPU, or one per core if there is no GPU",
      group);
  add(app, "--nnodes", flags.nnodes, "N|MIN:MAX",
      "The number of nodes, with one `lockstep run` on each (1)", group);
  add(app, "--local-nodes", flags.local_nodes, "M",
      "The number of nodes to emulate on this host (1)", group);
}

void add_rendezvous_flags(CLI::App& app, launch::RunFlags& flags) {
  const char* group = "Rendezvous";
  add(app, "--standalone", flags.standalone, "Run on this node alone, without a rendezvous", group);
  add(app, "--node-rank", flags.node_rank, "N", "This node's number, 0 for the head", group);
  add(app, "--master-addr", flags.master_addr, "HOST", "The host of node 0", group);
  add(app, "--master-port", flags.master_port, "PORT",
      "The port on which node 0 listens (29500); with one node: MASTER_PORT", group);
  add(app, "--rdzv-backend", flags.rdzv_backend, "static|lockstep|c10d",
      "static: nodes have the places that --node-rank gives (the default without --rdzv-endpoint); "
      "lockstep, also called c10d: nodes take places in the order in which they join",
      group);
  add(app, "--rdzv-endpoint", flags.rdzv_endpoint, "HOST[:PORT]",
      "The head's address, the same on every node (port 29400)", group);
  add(app, "--rdzv-id", flags.rdzv_id, "ID", "The job's name, the same on every node", group);
  add(app, "--rdzv-conf", flags.rdzv_conf, "KEY=VALUE,...",
      "join_timeout or timeout (600 s), last_call_timeout (30), heartbeat_timeout (2.5: a node "
      "that is silent for longer is lost), is_host; torchrun's other keys are accepted and have no "
      "effect",
      group);
  add(app, "--local-addr", flags.local_addr, "ADDRESS",
      "The address or interface by which other nodes reach this one", group);
  add(app, "--secret-file", flags.secret_file, "FILE",
      "The file that holds the job's secret, the same on every node; --hosts reads it on this host",
      group);
}

void add_supervision_flags(CLI::App& app, launch::RunFlags& flags) {
  const char* group = "Supervision";
  add(app, "--max-restarts", flags.max_restarts, "N",
      "Restart all ranks up to N times after a failure (0)", group);
  add(app, "--stop-grace,--shutdown-timeout", flags.stop_grace, "SECONDS",
      "Time from the signal to SIGKILL when the job is stopped (10, or "
      "TORCH_ELASTIC_SHUTDOWN_TIMEOUT)",
      group);
  add(app, "--signals-to-handle", flags.signals_to_handle, "SIGNALS",
      "The signals that end the job (SIGTERM,SIGINT,SIGHUP,SIGQUIT); the ranks get the same one",
      group);
  add(app, "--stdin", flags.stdin_rank, "RANK",
      "Give this rank the launcher's input; if it is a terminal, the rank gets one of its own, for "
      "pdb and passwords",
      group);
  add(app, "--isolation", flags.isolation, "auto|pidns|userns|guardian",
      "How leftover processes are found: pidns (by a PID namespace), userns (the same for ordinary "
      "users), guardian (by a watching parent), or auto: the first of these that is permitted",
      group);
  add(app, "--monitor-interval", flags.monitor_interval, "SECONDS",
      "Accepted without effect: the end of a rank is noticed at once", group);
  add(app, "--start-method", flags.start_method, "spawn|fork|forkserver",
      "Accepted without effect: a rank is always a program of its own", group);
}

void add_output_flags(CLI::App& app, launch::RunFlags& flags) {
  const char* group = "Output";
  add(app, "--log-dir", flags.log_dir, "DIR",
      "Keep the ranks' output under DIR/<job>_<run>/attempt_<K>/rank_<R>: all of it, or what -r "
      "and -t select",
      group);
  add(app, "--log-dir-mode", flags.log_dir_mode, "MODE",
      "The mode of the folders made there, in octal (700: only you can read them)", group);
  add(app, "-r,--redirects", flags.redirects, "STREAMS",
      "Write to log files instead of the console: 1 output, 2 errors, 3 both, or by local rank "
      "0:3,1:1",
      group);
  add(app, "-t,--tee", flags.tee, "STREAMS",
      "Write to log files and to the console; values as for -r", group);
  add(app, "--local-ranks-filter", flags.local_ranks_filter, "0,2,...",
      "Show only these local ranks on the console", group);
  add(app, "--duplicate-stdout-filters", flags.duplicate_stdout_filters, "TEXT,...",
      "Copy lines that contain one of these texts to filtered_stdout_n<node>.log", group);
  add(app, "--duplicate-stderr-filters", flags.duplicate_stderr_filters, "TEXT,...",
      "The same for standard error", group);
  add(app, "--role", flags.role, "NAME", "The ROLE_NAME of the ranks (default)", group);
  add(app, "--no-prefix", flags.no_prefix, "Write the ranks' lines without \"r2: \" before them",
      group);
}

void add_placement_flags(CLI::App& app, launch::RunFlags& flags) {
  const char* group = "Placement";
  add(app, "--bind", flags.bind, "auto|none|core|numa",
      "core: each rank runs on cores of its own; numa: on the cores of a NUMA node; auto: as core "
      "if there are enough cores; none (the default): wherever the kernel puts it",
      group);
  add(app, "--numa-binding", flags.numa_binding, "node|socket|exclusive|core-complex",
      "torchrun's flag for the same: ranks run near their GPUs", group);
  add(app, "--virtual-local-rank", flags.virtual_local_rank,
      "Let each rank see only its own GPU, as device 0, and LOCAL_RANK=0", group);
  add(app, "--share-gpu", flags.share_gpu,
      "Let several ranks use one GPU, in turn; without it a rank that has no GPU of its own, and "
      "wants one, is refused",
      group);
}

void add_program_flags(CLI::App& app, launch::RunFlags& flags) {
  const char* group = "The program";
  add(app, "-m,--module", flags.module, "PROGRAM is a Python module", group);
  add(app, "--no-python", flags.no_python,
      "Execute PROGRAM directly, without Python, even if it ends in .py or is not executable",
      group);
  add(app, "--run-path", flags.run_path, "Run PROGRAM by Python's runpy.run_path", group);
}

void add_list(CLI::App& app, const char* name, std::vector<std::string>& values, const char* type,
              const std::string& help, const char* group) {
  app.add_option(name, values, help)->type_name(type)->group(group)->allow_extra_args(false);
}

void add_host_flags(CLI::App& app, launch::RunFlags& flags) {
  const char* group = "Other hosts, over ssh";
  add(app, "--hosts", flags.hosts, "A,B:4,...",
      "Start a node on each of these hosts; a number is that host's ranks", group);
  add(app, "--hostfile", flags.hostfile, "FILE",
      "A file that lists the hosts, one per line (\"a slots=4\")", group);
  add_list(app, "--env", flags.env, "NAME[=VALUE]",
           "Pass this variable to the hosts too; may be repeated", group);
  add(app, "--join", flags.join, "", "");  // what --hosts starts there
}

void add_stage_flags(CLI::App& app, launch::RunFlags& flags) {
  add_list(
      app, "--stage", flags.stages, "SRC:DST",
      "Copy a file or folder (a path, s3://bucket/key) to each node before its ranks start; may "
      "be repeated",
      "Files");
}

void add_image_flags(CLI::App& app, launch::RunFlags& flags) {
  const char* group = "In an image";
  add(app, "--image", flags.image, "FILE.sqsh",
      "Run PROGRAM with this image as its root; s3://bucket/key is fetched first", group);
  add_list(app, "--mount", flags.mounts, "SRC:DST[:ro]",
           "Make a folder of the host visible in the image; may be repeated", group);
  add(app, "--container-runtime", flags.container_runtime, "builtin|enroot|apptainer|charliecloud",
      "The program that runs the image (builtin)", group);
}

void add_preview_flags(CLI::App& app, launch::RunFlags& flags) {
  const char* group = "Instead of running";
  add(app, "--dry-run", flags.dry_run, "Print what would run, and where", group);
  add(app, "--emit", flags.emit, "slurm|kubernetes",
      "Print a script for sbatch, or a manifest for kubectl, that runs the job", group);
  add(app, "--gpus-per-node", flags.gpus_per_node, "N",
      "With --emit: the GPUs to request from the scheduler on each node", group);
}

void add_refused_flags(CLI::App& app, launch::RunFlags& flags) {
  const char* group = "Known from torchrun, and refused";
  add(app, "--event-log-handler", flags.event_log_handler, "NAME",
      "A handler inside Python's torch; only null is accepted", group);
  add(app, "--logs-specs", flags.logs_specs, "NAME", "A Python plug-in", group);
}

std::string variable_of(const std::string& name) {
  std::string variable = "PET_" + name;
  for (char& letter : variable) {
    letter = letter == '-' ? '_' : static_cast<char>(std::toupper(letter));
  }
  return variable;
}

// Adds to `given` what only the environment says; returns the variables.
std::vector<std::string> add_variables(const CLI::App& app, const base::Env& env,
                                       Arguments& given) {
  std::vector<std::string> variables;
  for (const CLI::Option* option : app.get_options()) {
    if (!option->nonpositional() || option == app.get_help_ptr()) {
      continue;
    }
    const bool has_flag = std::any_of(given.begin(), given.end(), [&](const std::string& flag) {
      return option->check_name(flag.substr(0, flag.find('=')));
    });
    for (const std::string& name : option->get_lnames()) {
      const std::string variable = variable_of(name);
      const auto value = env.text(variable);
      const bool is_switch = option->get_items_expected_max() == 0;
      if (has_flag || !value || (is_switch && !*env.flag(variable))) {
        continue;
      }
      given.push_back(is_switch ? "--" + name : "--" + name + "=" + *value);
      variables.push_back(variable);
    }
  }
  return variables;
}

}  // namespace

std::optional<ReadFlags> read_run_flags(const Arguments& arguments, const base::Env& env) {
  ReadFlags read;
  CLI::App app("Starts PROGRAM on every rank and waits until the last of its processes has ended.",
               "lockstep run");
  add_size_flags(app, read.flags);
  add_output_flags(app, read.flags);
  add_program_flags(app, read.flags);
  add_placement_flags(app, read.flags);
  add_supervision_flags(app, read.flags);
  add_rendezvous_flags(app, read.flags);
  add_host_flags(app, read.flags);
  add_stage_flags(app, read.flags);
  add_image_flags(app, read.flags);
  add_preview_flags(app, read.flags);
  add_refused_flags(app, read.flags);
  // This is for the help only: what follows the flags is cut off before CLI11 sees it.
  std::vector<std::string> unused;
  app.add_option("PROGRAM", unused, "What to run, searched in PATH, and its arguments")
      ->type_name("[ARGS...]");
  app.footer(kRunExamples);

  SplitArguments split = split_arguments(app, arguments);
  read.variables = add_variables(app, env, split.flags);
  read.given = split.flags;
  if (!parse_flags(app, std::move(split.flags))) {
    return std::nullopt;
  }
  read.flags.program = std::move(split.command);
  return read;
}

}  // namespace lockstep::app
