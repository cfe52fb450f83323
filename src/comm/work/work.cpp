#include <thread>

#include <lockstep/comm/work.h>

#include "comm/backends/backend.h"
#include "comm/work/callback_pool.h"

namespace lockstep {

void Work::wait() {
  if (state_) {
    state_->wait(base::Deadline::never());
  }
}

bool Work::wait_for(std::chrono::milliseconds limit) {
  return !state_ || state_->wait(base::Deadline::after(limit));
}
bool Work::done() const {
  return !state_ || state_->done();
}
void Work::on_done(std::function<void(std::exception_ptr)> callback) {
  if (!state_) {
    comm::run_callback_here([&] { callback(nullptr); });
    return;
  }
  // Only what is called from inside this call, because it is done, runs on this thread.
  const auto is_inside = std::make_shared<bool>(true);
  const auto call = [callback = std::move(callback),
                     state = state_](const std::exception_ptr& error) {
    if (!error) {
      state->wait(base::Deadline::never());  // it is done, but this thread's stream has to know
    }
    callback(error);
  };
  state_->on_done(
      [call, is_inside, caller = std::this_thread::get_id()](const std::exception_ptr& error) {
        if (std::this_thread::get_id() == caller && *is_inside) {
          comm::run_callback_here([&] { call(error); });
        } else {
          comm::run_callback([call, error] { call(error); });
        }
      });
  *is_inside = false;
}

}  // namespace lockstep
