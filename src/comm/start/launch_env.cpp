#include "comm/start/launch_env.h"

#include <functional>

#include <lockstep/base/error.h>

#include "base/host_list.h"
#include "base/network.h"
#include "base/secret.h"
#include "base/store/store_protocol.h"

namespace lockstep::comm {
namespace {

constexpr int64_t kMaxRanks = 1 << 20;

struct Names {
  const char* source;
  const char* rank;
  const char* size;
};

// A secret that `lockstep run` refuses is refused from another launcher too.
std::string read_secret(const base::Env& env) {
  const std::string secret = env.text("LOCKSTEP_JOB_SECRET").value_or("");
  const std::string weakness = secret.empty() ? "" : base::secret_weakness(secret);
  if (!weakness.empty()) {
    throw UsageError(
        "init: LOCKSTEP_JOB_SECRET can be guessed by anyone who listens to the network: {}, and {} "
        "bits "
        "are needed; make one for all ranks: openssl rand -hex 32",
        weakness, base::kMinSecretBits);
  }
  return secret;
}

// Rank and size from the two variables of a launcher, checked against each other.
LaunchEnv read_ranks(const base::Env& env, const Names& names) {
  const auto rank = env.integer(names.rank, 0, kMaxRanks - 1);
  const auto size = env.integer(names.size, 1, kMaxRanks);
  if (!rank || !size) {
    throw UsageError("init: {} is set but {} is not; both are needed",
                     rank ? names.rank : names.size, rank ? names.size : names.rank);
  }
  if (*rank >= *size) {
    throw UsageError("init: {}={} is not below {}={}", names.rank, *rank, names.size, *size);
  }
  LaunchEnv launch;
  launch.source = names.source;
  launch.rank = static_cast<int>(*rank);
  launch.size = static_cast<int>(*size);
  launch.secret = read_secret(env);
  return launch;
}

// MASTER_ADDR and MASTER_PORT, if both are set.
std::optional<base::Endpoint> master(const base::Env& env) {
  const auto host = env.text("MASTER_ADDR");
  const auto port = env.integer("MASTER_PORT", 1, 65535);
  if (!host || !port) {
    return std::nullopt;
  }
  return base::Endpoint{*host, static_cast<uint16_t>(*port)};
}

base::Endpoint need_master(const base::Env& env, const char* source) {
  const auto endpoint = master(env);
  if (!endpoint) {
    throw UsageError(
        "init: started by {} with several ranks, but MASTER_ADDR or MASTER_PORT is not set; set "
        "them "
        "to rank 0's host and a free port, or start the program with `lockstep run`",
        source);
  }
  return *endpoint;
}

LaunchEnv from_lockstep(const base::Env& env) {
  LaunchEnv launch = read_ranks(env, {"lockstep run", "LOCKSTEP_RANK", "LOCKSTEP_WORLD_SIZE"});
  launch.job_id =
      base::store::rank_scope(env.text("LOCKSTEP_JOB_ID").value_or(""),
                              env.integer("LOCKSTEP_GENERATION", 0, INT64_MAX).value_or(0));
  if (launch.size > 1) {
    const auto store = env.text("LOCKSTEP_STORE");
    if (!store) {
      throw UsageError(
          "init: LOCKSTEP_RANK is set but LOCKSTEP_STORE is not; `lockstep run` sets both");
    }
    launch.store_host = LaunchEnv::StoreHost::Launcher;
    launch.store = base::Endpoint::parse(*store, "LOCKSTEP_STORE");
  }
  return launch;
}

LaunchEnv from_torchrun(const base::Env& env) {
  LaunchEnv launch = read_ranks(env, {"torchrun", "RANK", "WORLD_SIZE"});
  launch.job_id = env.text("TORCHELASTIC_RUN_ID").value_or("") + "-" +
                  env.text("TORCHELASTIC_RESTART_COUNT").value_or("0");
  if (launch.size > 1) {
    launch.store = need_master(env, "torchrun");
    launch.store_host = env.flag("TORCHELASTIC_USE_AGENT_STORE").value_or(false)
                            ? LaunchEnv::StoreHost::TorchStore
                            : LaunchEnv::StoreHost::RankZero;
  }
  return launch;
}

LaunchEnv from_mpirun(const base::Env& env) {
  LaunchEnv launch = read_ranks(env, {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"});
  launch.job_id =
      env.text("PMIX_NAMESPACE").value_or(env.text("OMPI_MCA_ess_base_jobid").value_or("mpirun"));
  if (launch.size > 1) {
    launch.store_host = LaunchEnv::StoreHost::RankZero;
    const auto local_size = env.integer("OMPI_COMM_WORLD_LOCAL_SIZE", 1, kMaxRanks);
    if (const auto endpoint = master(env)) {
      launch.store = *endpoint;
    } else if (local_size == launch.size) {
      launch.store = {"127.0.0.1", base::port_for(launch.job_id)};
    } else {
      launch.store = need_master(env, "mpirun");
    }
  }
  return launch;
}

LaunchEnv from_srun(const base::Env& env) {
  LaunchEnv launch = read_ranks(env, {"srun", "SLURM_PROCID", "SLURM_NTASKS"});
  launch.job_id =
      env.text("SLURM_JOB_ID").value_or("0") + "." + env.text("SLURM_STEP_ID").value_or("0");
  if (launch.size > 1) {
    launch.store_host = LaunchEnv::StoreHost::RankZero;
    const bool one_node = env.integer("SLURM_STEP_NUM_NODES", 1, kMaxRanks).value_or(0) == 1;
    const auto hosts = env.text("SLURM_STEP_NODELIST");
    if (const auto endpoint = master(env)) {
      launch.store = *endpoint;
    } else if (one_node) {
      launch.store = {"127.0.0.1", base::port_for(launch.job_id)};
    } else if (hosts) {
      launch.store = {base::expand_host_list(*hosts, "init: SLURM_STEP_NODELIST").front(),
                      base::port_for(launch.job_id)};
    } else {
      launch.store = need_master(env, "srun");
    }
  }
  return launch;
}

LaunchEnv from_bare_rank(const base::Env& env) {
  LaunchEnv launch = read_ranks(env, {"RANK and WORLD_SIZE", "RANK", "WORLD_SIZE"});
  if (launch.size > 1) {
    launch.store_host = LaunchEnv::StoreHost::RankZero;
    launch.store = need_master(env, "hand (RANK is set)");
    launch.job_id = "rank-" + std::to_string(launch.store.port);
  }
  return launch;
}

}  // namespace

LaunchEnv read_launch_env(const base::Env& env) {
  if (env.has("LOCKSTEP_RANK")) {
    return from_lockstep(env);
  }
  if (env.has("RANK") && env.has("TORCHELASTIC_RUN_ID")) {
    return from_torchrun(env);
  }
  if (env.has("OMPI_COMM_WORLD_RANK")) {
    return from_mpirun(env);
  }
  // Only inside a step: a batch script has SLURM_PROCID=0 too, and is no rank.
  if (env.has("SLURM_PROCID") && env.has("SLURM_STEP_ID") && env.has("SLURM_NTASKS")) {
    return from_srun(env);
  }
  if (env.has("RANK")) {
    return from_bare_rank(env);
  }
  return {};
}

}  // namespace lockstep::comm
