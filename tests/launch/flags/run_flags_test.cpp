// What each flag of `lockstep run` means, and what is refused.

#include "launch/flags/run_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

launch::LaunchOptions meaning(launch::RunFlags flags, const launch::RunHost& host = {}) {
  if (flags.program.empty()) {
    flags.program = {"./x"};
  }
  return launch::launch_options(flags, host);
}

// Two nodes that take their places as they come; the tests change what they are about.
launch::RunFlags two_nodes() {
  return {.nnodes = "2", .rdzv_backend = "lockstep", .rdzv_endpoint = "head"};
}

launch::RunFlags two_static() {
  return {.nnodes = "2", .node_rank = "1", .master_addr = "head"};
}

std::string refusal(const launch::RunFlags& flags, const launch::RunHost& host = {}) {
  try {
    meaning(flags, host);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(RunFlags, NothingGivenIsOneRankOnOneNode) {
  const launch::LaunchOptions options = meaning({});
  EXPECT_EQ(options.min_nodes, 1);
  EXPECT_EQ(options.max_nodes, 1);
  EXPECT_EQ(options.procs_per_node, 1);
  EXPECT_EQ(options.local_nodes, 1);
  EXPECT_EQ(options.rendezvous.endpoint, "");
  EXPECT_EQ(options.rendezvous.job_id, "");
  EXPECT_EQ(options.rendezvous.node_rank, -1);
  EXPECT_EQ(options.master_port, 0);
  EXPECT_EQ(options.max_restarts, 0);
  EXPECT_EQ(options.role, "default");
  EXPECT_EQ(options.stop_grace, 10s);
  EXPECT_EQ(options.placement.bind, launch::BindMode::None);
  EXPECT_TRUE(options.output.prefix);
  EXPECT_THAT(options.command, ElementsAre("./x"));
}

TEST(RunFlags, Nnodes) {
  launch::RunFlags flags = two_nodes();
  EXPECT_EQ(meaning(flags).min_nodes, 2);
  EXPECT_EQ(meaning(flags).max_nodes, 2);
  flags.nnodes = "1:4";
  EXPECT_EQ(meaning(flags).min_nodes, 1);
  EXPECT_EQ(meaning(flags).max_nodes, 4);
  EXPECT_EQ(meaning({.nnodes = "1:1"}).rendezvous.endpoint, "");
  for (const char* text : {"0", "4:2", "1:2:3", "x", ":", "2:", "99999", "0:1", "-1"}) {
    flags.nnodes = text;
    EXPECT_THAT(refusal(flags), HasSubstr("is neither a number of nodes nor MIN:MAX")) << text;
  }
}

TEST(RunFlags, NprocPerNode) {
  const launch::RunHost cpus{.num_cores = 6}, gpus{.num_cores = 6, .num_gpus = 4};
  EXPECT_EQ(meaning({.nproc_per_node = "3"}, gpus).procs_per_node, 3);
  EXPECT_EQ(meaning({.nproc_per_node = "auto"}, gpus).procs_per_node, 4);
  EXPECT_EQ(meaning({.nproc_per_node = "auto"}, cpus).procs_per_node, 6);
  EXPECT_EQ(meaning({.nproc_per_node = "cpu"}, gpus).procs_per_node, 6);
  EXPECT_EQ(meaning({.nproc_per_node = "gpu"}, gpus).procs_per_node, 4);
  EXPECT_EQ(meaning({.nproc_per_node = "auto", .local_nodes = "2"}, cpus).procs_per_node, 3);
  EXPECT_THAT(refusal({.nproc_per_node = "gpu"}, cpus), HasSubstr("there is no GPU here"));
  const launch::RunHost unwanted{.num_cores = 6, .num_gpus = 4, .is_for_cpu = true};
  EXPECT_EQ(meaning({.nproc_per_node = "auto"}, unwanted).procs_per_node, 6);
  EXPECT_THAT(refusal({.nproc_per_node = "gpu"}, unwanted), HasSubstr("LOCKSTEP_DEVICE=cpu says"));
  EXPECT_EQ(meaning({.nproc_per_node = "gpu", .local_nodes = "2"}, gpus).procs_per_node, 2);
  EXPECT_THAT(
      refusal({.nproc_per_node = "gpu", .local_nodes = "5"}, gpus),
      AllOf(HasSubstr("4 GPUs cannot be dealt out to 5 emulated nodes"), HasSubstr("--share-gpu")));
  EXPECT_EQ(meaning({.nproc_per_node = "gpu", .local_nodes = "5", .share_gpu = true}, gpus)
                .procs_per_node,
            1);
  EXPECT_THAT(refusal({.nproc_per_node = "xpu"}), HasSubstr("give the number"));
  EXPECT_THAT(refusal({.nproc_per_node = "tpu"}), HasSubstr("a number, auto, cpu or gpu"));
  EXPECT_THAT(refusal({.nproc_per_node = "2x"}), HasSubstr("is not a whole number in [1, 1024]"));
  EXPECT_THAT(refusal({.nproc_per_node = "0"}), HasSubstr("is not a whole number in [1, 1024]"));
}

TEST(RunFlags, StaticNodesAreToldTheirPlace) {
  launch::RunFlags flags = two_static();
  launch::LaunchOptions options = meaning(flags);
  EXPECT_EQ(options.rendezvous.endpoint, "head:29500");
  EXPECT_EQ(options.rendezvous.node_rank, 1);
  EXPECT_EQ(options.rendezvous.is_head, std::optional(false));
  EXPECT_EQ(options.rendezvous.job_id, "none");
  EXPECT_EQ(options.master_port, 0);
  flags.node_rank = "0";
  flags.master_port = "1234";
  flags.master_addr = "[fe80::1]";
  options = meaning(flags);
  EXPECT_EQ(options.rendezvous.endpoint, "[fe80::1]:1234");
  EXPECT_EQ(options.rendezvous.is_head, std::optional(true));
  flags.rdzv_backend = "static";
  flags.master_addr = "";
  flags.rdzv_endpoint = "other:7";
  EXPECT_EQ(meaning(flags).rendezvous.endpoint, "other:7");
}

TEST(RunFlags, StaticRefusals) {
  launch::RunFlags flags = two_static();
  flags.node_rank = "";
  EXPECT_THAT(refusal(flags), HasSubstr("--nnodes 2 needs --node-rank"));
  for (const char* rank : {"2", "-1", "x"}) {
    flags.node_rank = rank;
    EXPECT_THAT(refusal(flags), HasSubstr("is not a whole number in [0, 1]"));
  }
  flags = two_static();
  flags.master_addr = "";
  EXPECT_THAT(refusal(flags), HasSubstr("--nnodes 2 needs --master-addr"));
  flags = two_static();
  flags.master_port = "0";
  EXPECT_THAT(refusal(flags), HasSubstr("--master-port 0 is not a whole number in [1, 65535]"));
  flags = two_static();
  flags.nnodes = "1:2";
  EXPECT_THAT(refusal(flags), HasSubstr("give --rdzv-backend lockstep"));
  flags = two_static();
  flags.rdzv_endpoint = "elsewhere:7";
  EXPECT_THAT(refusal(flags), HasSubstr("name two heads"));
  flags.rdzv_endpoint = "head:7";
  EXPECT_EQ(refusal(flags), "");
}

TEST(RunFlags, RdzvBackendsThatMeetAtAnEndpoint) {
  launch::RunFlags flags = two_nodes();
  for (const char* backend : {"lockstep", "c10d", ""}) {
    flags.rdzv_backend = backend;
    const launch::RendezvousOptions rendezvous = meaning(flags).rendezvous;
    EXPECT_EQ(rendezvous.endpoint, "head:29400");
    EXPECT_EQ(rendezvous.node_rank, -1);
    EXPECT_EQ(rendezvous.is_head, std::nullopt);
  }
  for (const auto& [text, endpoint] : std::map<std::string, std::string>{{"h:1", "h:1"},
                                                                         {"[::1]", "[::1]:29400"},
                                                                         {"[::1]:5", "[::1]:5"},
                                                                         {"::1", "[::1]:29400"}}) {
    flags.rdzv_endpoint = text;
    EXPECT_EQ(meaning(flags).rendezvous.endpoint, endpoint);
  }
  flags.node_rank = "1";
  EXPECT_EQ(meaning(flags).rendezvous.node_rank, 1);
  flags.rdzv_endpoint = "h:x";
  EXPECT_THAT(refusal(flags), HasSubstr("--rdzv-endpoint: h:x is not HOST:PORT"));
  flags = {.nnodes = "2", .rdzv_backend = "c10d"};
  EXPECT_THAT(refusal(flags), HasSubstr("needs --rdzv-endpoint HOST[:PORT]"));
  for (const char* backend : {"etcd", "etcd-v2"}) {
    EXPECT_THAT(refusal({.rdzv_backend = backend}), HasSubstr("does not speak to"));
  }
  EXPECT_THAT(refusal({.rdzv_backend = "zeus"}), HasSubstr("it is static, lockstep or c10d"));
}

TEST(RunFlags, OneNodeMeetsNobody) {
  EXPECT_EQ(meaning({.rdzv_backend = "c10d", .rdzv_endpoint = "h:1"}).rendezvous.endpoint, "");
  EXPECT_EQ(meaning({.rdzv_endpoint = "localhost:0", .standalone = true}).rendezvous.endpoint, "");
  EXPECT_EQ(meaning({.node_rank = "0", .master_addr = "h", .master_port = "77"}).master_port, 77);
  EXPECT_EQ(meaning({.rdzv_id = "job-1"}).rendezvous.job_id, "job-1");
  launch::RunFlags flags = two_nodes();
  flags.standalone = true;
  EXPECT_THAT(refusal(flags), HasSubstr("--standalone is a job of one node and --nnodes 2 is not"));
  EXPECT_THAT(refusal({.nnodes = "2", .local_nodes = "2"}), HasSubstr("give one of them"));
  EXPECT_THAT(refusal({.local_nodes = "65"}), HasSubstr("--local-nodes 65 is not"));
  EXPECT_THAT(refusal({.master_port = "65536"}), HasSubstr("--master-port 65536 is not"));
}

TEST(RunFlags, TheRestOfTheRendezvous) {
  launch::RunFlags flags = two_nodes();
  flags.rdzv_id = "run-7.a@b";
  flags.local_addr = "eth1";
  flags.secret_file = "/s";
  const launch::RendezvousOptions rendezvous = meaning(flags).rendezvous;
  EXPECT_EQ(rendezvous.job_id, "run-7.a@b");
  EXPECT_EQ(rendezvous.local_addr, "eth1");
  EXPECT_EQ(rendezvous.secret_file, "/s");
  for (const std::string& id :
       {std::string("../x"), std::string("a b"), std::string(".."), std::string(129, 'x')}) {
    EXPECT_THAT(refusal({.rdzv_id = id}), HasSubstr("cannot name a job"));
  }
}

TEST(RunFlags, RdzvConf) {
  launch::RunFlags flags = two_nodes();
  flags.rdzv_conf =
      "join_timeout=60,last_call_timeout=2,heartbeat_timeout=1.5,is_host=True,store_type=tcp,"
      "close_timeout=30,read_timeout=60,keep_alive_interval=5,keep_alive_max_attempt=3,use_libuv=1";
  const launch::RendezvousOptions rendezvous = meaning(flags).rendezvous;
  EXPECT_EQ(rendezvous.join_timeout, 60s);
  EXPECT_EQ(rendezvous.last_call, 2s);
  EXPECT_EQ(rendezvous.lost_after, 1500ms);
  EXPECT_EQ(rendezvous.is_head, std::optional(true));
  EXPECT_EQ(meaning({.rdzv_conf = "timeout=7"}).rendezvous.join_timeout, 7s);
  EXPECT_THAT(refusal({.rdzv_conf = "is_host=maybe"}), HasSubstr("is neither true nor false"));
  EXPECT_THAT(refusal({.rdzv_conf = "store_type=file"}), HasSubstr("the rendezvous uses TCP only"));
  EXPECT_THAT(refusal({.rdzv_conf = "join_timeot=1"}), HasSubstr("did you mean join_timeout?"));
  EXPECT_THAT(refusal({.rdzv_conf = "timeout=soon"}), HasSubstr("is not a number of seconds"));
  EXPECT_THAT(refusal({.rdzv_conf = "heartbeat_timeout=0"}), HasSubstr("lost at once"));
  EXPECT_THAT(refusal({.rdzv_conf = "timeout"}), HasSubstr("is not KEY=VALUE"));
}

TEST(RunFlags, Supervision) {
  const launch::LaunchOptions options = meaning({.max_restarts = "3",
                                                 .stop_grace = "2.5",
                                                 .signals_to_handle = "SIGTERM,USR1",
                                                 .isolation = "guardian",
                                                 .monitor_interval = "0.1",
                                                 .start_method = "fork"});
  EXPECT_EQ(options.max_restarts, 3);
  EXPECT_EQ(options.stop_grace, 2500ms);
  EXPECT_THAT(options.stop_signals, ElementsAre(SIGTERM, SIGUSR1));
  EXPECT_EQ(options.isolation, base::IsolationMode::Guardian);
  EXPECT_EQ(meaning({}, {.shutdown_timeout = "7"}).stop_grace, 7s);
  EXPECT_EQ(meaning({.stop_grace = "1"}, {.shutdown_timeout = "7"}).stop_grace, 1s);
  EXPECT_THAT(refusal({}, {.shutdown_timeout = "x"}),
              HasSubstr("TORCH_ELASTIC_SHUTDOWN_TIMEOUT x"));
  EXPECT_THAT(refusal({.max_restarts = "-1"}), HasSubstr("--max-restarts -1 is not"));
  EXPECT_THAT(refusal({.signals_to_handle = "SIGKILL"}), HasSubstr("SIGKILL is not one of"));
  EXPECT_THAT(refusal({.monitor_interval = "x"}), HasSubstr("--monitor-interval x is not"));
  EXPECT_THAT(refusal({.start_method = "thread"}), HasSubstr("spawn, fork or forkserver"));
}

TEST(RunFlags, Output) {
  const launch::OutputOptions output = meaning({.log_dir = "/logs",
                                                .redirects = "3",
                                                .tee = "0:1,12:2",
                                                .local_ranks_filter = "2,0,2",
                                                .duplicate_stdout_filters = "a,,b,c",
                                                .duplicate_stderr_filters = "loss",
                                                .no_prefix = true})
                                           .output;
  EXPECT_EQ(output.log_dir, "/logs");
  EXPECT_EQ(output.redirects.of(5), 3u);
  EXPECT_EQ(output.tee.of(12), 2u);
  EXPECT_THAT(output.shown, ElementsAre(0, 2));
  EXPECT_THAT(output.stdout_filters, ElementsAre("a,b", "c"));
  EXPECT_THAT(output.stderr_filters, ElementsAre("loss"));
  EXPECT_FALSE(output.prefix);
  const launch::RunHost host{.prefix_template = "[${role_name} ${rank}] "};
  EXPECT_EQ(meaning({.role = "actor"}, host).output.prefix_template, "[actor ${rank}] ");
  EXPECT_EQ(meaning({.role = "actor"}).role, "actor");
  EXPECT_EQ(meaning({.no_prefix = true}, host).output.prefix_template, "");
  EXPECT_THAT(refusal({.redirects = "4"}), HasSubstr("--redirects 4 is neither"));
  EXPECT_THAT(refusal({.tee = "x"}), HasSubstr("--tee x is neither"));
  EXPECT_THAT(refusal({.local_ranks_filter = "0,,1"}), HasSubstr("--local-ranks-filter  is not"));
  EXPECT_THAT(refusal({.duplicate_stderr_filters = "x"}),
              HasSubstr("--duplicate-stderr-filters needs --log-dir"));
  EXPECT_THAT(refusal({.log_dir = "/l", .duplicate_stdout_filters = "x,"}),
              HasSubstr("an empty filter"));
}

TEST(RunFlags, Placement) {
  EXPECT_EQ(meaning({.bind = "auto"}).placement.bind, launch::BindMode::Auto);
  EXPECT_EQ(meaning({.bind = "none"}).placement.bind, launch::BindMode::None);
  EXPECT_EQ(meaning({.bind = "core"}).placement.bind, launch::BindMode::Core);
  EXPECT_EQ(meaning({.bind = "numa"}).placement.bind, launch::BindMode::Numa);
  EXPECT_EQ(meaning({.numa_binding = "node"}).placement.bind, launch::BindMode::Numa);
  EXPECT_EQ(meaning({.numa_binding = "socket"}).placement.bind, launch::BindMode::Socket);
  EXPECT_EQ(meaning({.numa_binding = "exclusive"}).placement.bind, launch::BindMode::Core);
  EXPECT_EQ(meaning({.numa_binding = "core-complex"}).placement.bind,
            launch::BindMode::CoreComplex);
  EXPECT_TRUE(meaning({.virtual_local_rank = true}).placement.virtual_local_rank);
  EXPECT_TRUE(meaning({.share_gpu = true}).placement.share_gpu);
  EXPECT_FALSE(meaning({}).placement.share_gpu);
  EXPECT_THAT(refusal({.bind = "gpu"}), HasSubstr("auto, none, core or numa"));
  EXPECT_THAT(refusal({.numa_binding = "core"}), HasSubstr("node, socket, exclusive"));
  EXPECT_THAT(refusal({.bind = "core", .numa_binding = "node"}), HasSubstr("give one of them"));
}

// A desk without a GPU may start a job on hosts that have some.
TEST(RunFlags, HostsCountTheirOwnGpus) {
  const launch::RunHost desk{.num_cores = 2};
  for (const char* word : {"gpu", "auto", "cpu"}) {
    launch::RunFlags flags{.nproc_per_node = word, .local_ranks_filter = "7", .hosts = "a,b:3"};
    const launch::LaunchOptions options = meaning(flags, desk);
    EXPECT_TRUE(options.hosts_count) << word;
    EXPECT_NO_THROW(launch::check_options(options)) << "nobody here knows the largest local rank";
  }
  EXPECT_FALSE(meaning({.nproc_per_node = "4", .hosts = "a,b"}, desk).hosts_count);
  EXPECT_FALSE(meaning({.nproc_per_node = "auto"}, desk).hosts_count);
}

TEST(RunFlags, Programs) {
  EXPECT_THAT(meaning({.program = {"t.py", "-x"}}).command,
              ElementsAre("python3", "-u", "t.py", "-x"));
  EXPECT_THAT(meaning({.program = {"t.py"}}, {.python = "/opt/py"}).command,
              ElementsAre("/opt/py", "-u", "t.py"));
  EXPECT_THAT(meaning({.no_python = true, .program = {"t.py"}}).command, ElementsAre("t.py"));
  EXPECT_THAT(meaning({.module = true, .program = {"pkg.mod", "1"}}).command,
              ElementsAre("python3", "-u", "-m", "pkg.mod", "1"));
}

TEST(RunFlags, WhatPythonPlugInsDoIsRefused) {
  EXPECT_THAT(refusal({.event_log_handler = "console"}), HasSubstr("inside Python's torch"));
  EXPECT_EQ(refusal({.event_log_handler = "null"}), "");
  EXPECT_THAT(refusal({.logs_specs = "mine"}), HasSubstr("names a Python plug-in"));
}

}  // namespace
}  // namespace lockstep
