#include <atomic>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/comm/requests.h>

#include "base/env.h"
#include "base/process.h"
#include "base/store_client.h"
#include "comm/launch_env.h"

namespace lockstep {
namespace {

constexpr auto kStoreTime = std::chrono::seconds(30);

// The launcher's store. A group of one is made without it.
std::shared_ptr<StoreClient> launcher_store(const Group& group, const Env& env) {
  const auto endpoint = env.text("LOCKSTEP_STORE");
  if (!env.has("LOCKSTEP_RANK") || !endpoint) {
    return nullptr;
  }
  if (group.size() > 1) {
    return group.store().client();
  }
  const LaunchEnv launch = read_launch_env(env);
  return std::make_shared<StoreClient>(
      StoreClientOptions{.server = Endpoint::parse(*endpoint, "LOCKSTEP_STORE"),
                         .job_id = launch.job_id,
                         .secret = launch.secret},
      Deadline::after(kStoreTime));
}

}  // namespace

// Raised by the store's reader thread, taken by at_step_boundary().
struct JobRequests::Listener {
  std::shared_ptr<StoreClient> store;
  int rank = 0;
  std::atomic<int> asked = 0;

  void hear(const std::string& text) {
    const auto request =
        static_cast<int>(text == "stop" ? JobRequest::CheckpointAndStop : JobRequest::Checkpoint);
    int before = asked.load();
    while (before < request && !asked.compare_exchange_weak(before, request)) {
    }
  }
};

JobRequests::JobRequests(const Group& group) : group_(group) {
  auto store = launcher_store(group, Env());
  if (!store) {
    return;
  }
  listener_ = std::make_unique<Listener>();
  listener_->store = std::move(store);
  listener_->rank = group.rank();
  Listener* listener = listener_.get();
  listener_->store->join(
      store::kRequestGroup, listener_->rank, "pid " + std::to_string(host_pid()),
      {.lost = [](int, const std::string&) {},
       .noted = [listener](int, const std::string& text) { listener->hear(text); },
       .disconnected = [](const std::string&) {}},
      Deadline::after(kStoreTime));
}

JobRequests::~JobRequests() {
  if (!listener_) {
    return;
  }
  try {
    listener_->store->leave(store::kRequestGroup, listener_->rank, Deadline::after(kStoreTime));
  } catch (const Error&) {
    // The launcher is gone: nobody is left to say goodbye to.
  }
}

JobRequest JobRequests::at_step_boundary() {
  int asked = listener_ ? listener_->asked.exchange(0) : 0;
  if (group_.size() > 1) {
    at::Tensor highest = at::full({1}, asked, at::kInt);
    group_.all_reduce(highest, {.op = ReduceOp::Max});
    asked = highest.item<int>();
  }
  return static_cast<JobRequest>(asked);
}

}  // namespace lockstep
