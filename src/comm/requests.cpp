#include <atomic>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/comm/requests.h>

#include "base/env.h"
#include "base/process/process.h"
#include "base/store/store_client.h"
#include "comm/start/launch_env.h"
#include "comm/stop_state.h"

namespace lockstep {
namespace {

constexpr auto kStoreTime = std::chrono::seconds(30);

// The launcher's store. A group of one is made without it.
std::shared_ptr<base::StoreClient> launcher_store(const Group& group, const base::Env& env) {
  const auto endpoint = env.text("LOCKSTEP_STORE");
  if (!env.has("LOCKSTEP_RANK") || !endpoint) {
    return nullptr;
  }
  if (group.size() > 1) {
    return group.store().client();
  }
  const comm::LaunchEnv launch = comm::read_launch_env(env);
  return std::make_shared<base::StoreClient>(
      base::StoreClientOptions{.server = base::Endpoint::parse(*endpoint, "LOCKSTEP_STORE"),
                               .job_id = launch.job_id,
                               .secret = launch.secret},
      base::Deadline::after(kStoreTime));
}

}  // namespace

// Raised by the store's reader thread, read by at_step_boundary(). Ranks hear a request at
// different moments, one perhaps after the others have answered it: requests are counted, never
// taken back, so that the late one adds nothing new.
struct JobRequests::Listener {
  std::shared_ptr<base::StoreClient> store;
  int rank = 0;
  std::atomic<int> num_requests = 0;  // for checkpoints

  void hear(const std::string& text) {
    if (text == "stop") {
      comm::stop_state::ask();
    } else {
      ++num_requests;
    }
  }
};

JobRequests::JobRequests(const Group& group) : group_(group) {
  auto store = launcher_store(group, base::Env());
  if (!store) {
    return;
  }
  listener_ = std::make_unique<Listener>();
  listener_->store = std::move(store);
  listener_->rank = group.rank();
  Listener* listener = listener_.get();
  listener_->store->join(
      base::store::kRequestGroup, listener_->rank, "pid " + std::to_string(base::host_pid()),
      {.lost = [](int, const std::string&) {},
       .noted = [listener](int, const std::string& text) { listener->hear(text); },
       .disconnected = [](const std::string&) {}},
      base::Deadline::after(kStoreTime));
}

JobRequests::~JobRequests() {
  if (!listener_) {
    return;
  }
  try {
    listener_->store->leave(base::store::kRequestGroup, listener_->rank,
                            base::Deadline::after(kStoreTime));
  } catch (const Error&) {
    // The launcher is gone, so there is no one to tell.
  }
}

JobRequest JobRequests::at_step_boundary() {
  int num_requests = listener_ ? listener_->num_requests.load() : 0;
  int is_end_asked = comm::stop_state::asked_ms != 0 ? 1 : 0;
  if (group_.size() > 1) {
    at::Tensor highest = at::empty({2}, at::kInt);
    int* data = highest.mutable_data_ptr<int>();
    data[0] = num_requests;
    data[1] = is_end_asked;
    group_.all_reduce(highest, {.op = ReduceOp::Max});
    num_requests = data[0];
    is_end_asked = data[1];
  }
  if (is_end_asked != 0 && !is_end_answered_) {
    is_end_answered_ = true;
    return JobRequest::CheckpointAndStop;
  }
  const bool is_new = num_requests != num_answered_;
  num_answered_ = num_requests;
  return is_new ? JobRequest::Checkpoint : JobRequest::None;
}

}  // namespace lockstep
