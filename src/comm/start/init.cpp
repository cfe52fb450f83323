#include <memory>
#include <mutex>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/comm/init.h>

#include "base/secret.h"
#include "base/store/store_client.h"
#include "comm/c10d/torch_store.h"
#include "comm/membership.h"
#include "comm/start/connect.h"
#include "comm/start/launch_env.h"
#include "device/cuda_library.h"

namespace lockstep {
namespace {

StoreOptions store_options(const comm::LaunchEnv& launch, std::chrono::milliseconds timeout) {
  return {.endpoint = launch.store.text(),
          .job_id = launch.job_id,
          .secret = launch.secret,
          .timeout = timeout};
}

// Rank 0 hosts our store on the interface by which torchrun's is reached, and tells the others
// through it.
Store meet_through_torchrun(const comm::LaunchEnv& launch, std::chrono::milliseconds timeout) {
  const std::string key = "lockstep/" + launch.job_id;
  StoreOptions options = store_options(launch, timeout);
  if (launch.rank == 0) {
    const std::string interface =
        base::Socket::connect(launch.store, base::Deadline::after(timeout)).local_host();
    options.endpoint = base::Endpoint{interface, 0}.text();
    options.secret = base::make_secret();
    Store store = Store::host(options);
    comm::publish_in_torch_store(launch.store, key, store.endpoint() + " " + options.secret,
                                 timeout);
    return store;
  }
  const std::string told = comm::read_from_torch_store(launch.store, key, timeout);
  const size_t space = told.find(' ');
  if (space == std::string::npos) {
    throw FormatError("init: torchrun's store holds \"{}\" under {}, not an address and a secret",
                      told, key);
  }
  options.endpoint = told.substr(0, space);
  options.secret = told.substr(space + 1);
  return Store::connect(options);
}

Store meet(const comm::LaunchEnv& launch, std::chrono::milliseconds timeout) {
  switch (launch.store_host) {
    case comm::LaunchEnv::StoreHost::TorchStore:
      return meet_through_torchrun(launch, timeout);
    case comm::LaunchEnv::StoreHost::RankZero:
      if (launch.rank == 0) {
        if (launch.secret.empty()) {
          log::warn(
              "comm",
              "init: the store at {} lets in anyone who reaches it: {} gives ranks no secret. Set "
              "LOCKSTEP_JOB_SECRET to the same random text on all ranks, or use `lockstep run`",
              launch.store.text(), launch.source);
        }
        return Store::host(store_options(launch, timeout));
      }
      [[fallthrough]];
    case comm::LaunchEnv::StoreHost::Launcher:
      return Store::connect(store_options(launch, timeout));
    case comm::LaunchEnv::StoreHost::None:
      break;
  }
  throw InternalError("init: a group of one needs no store");
}

// The job's group of this process, while it lives.
struct World {
  std::mutex mutex;
  std::weak_ptr<comm::Backend> backend;
};
World& world_of_process() {
  static World world;
  return world;
}

void refuse_second_world() {
  const std::lock_guard lock(world_of_process().mutex);
  if (!world_of_process().backend.expired()) {
    throw UsageError(
        "init: this process is in the job's group already; call init() once, keep the Group that "
        "it "
        "returned and hand it on (copies are cheap); for another group of the same ranks use "
        "group.split() or make_group(group.store(), ...) with a name of its own");
  }
}

void remember_world(const std::shared_ptr<comm::Backend>& backend) {
  const std::lock_guard lock(world_of_process().mutex);
  world_of_process().backend = backend;
}

}  // namespace

Group init(InitOptions options) {
  const base::Env env;
  const comm::LaunchEnv launch = comm::read_launch_env(env);
  comm::check_backend_variables();
  device::load_cuda();  // before anybody makes a tensor there
  log::set_rank(launch.rank);
  device::log_cuda();
  if (launch.size == 1) {
    log::info("comm", "init: a group of one ({}): collectives are no-ops", launch.source);
    return make_single_group();
  }
  refuse_second_world();
  const Store store = meet(launch, options.start_timeout);
  const bool hosts_store =
      launch.rank == 0 && launch.store_host != comm::LaunchEnv::StoreHost::Launcher;
  GroupOptions group{.name = comm::kWorldName,
                     .rank = launch.rank,
                     .size = launch.size,
                     .timeout = options.start_timeout};
  const comm::Connected world = comm::connect_group({.store = store,
                                                     .group = std::move(group),
                                                     .operation_timeout = options.timeout,
                                                     .hosts_store = hosts_store});
  if (launch.rank == 0) {
    log::info("comm", "init: {} ranks from {}; backend {}: {}; store {}", launch.size,
              launch.source, world.backend->name(), world.reason, store.endpoint());
  }
  remember_world(world.backend);
  return Group(world.backend);
}

}  // namespace lockstep
