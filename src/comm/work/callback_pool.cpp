#include "comm/work/callback_pool.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include <lockstep/base/log.h>

namespace lockstep::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kIdleTime = 10s;  // that a thread waits for its next job

// Has as many threads as jobs run at once: one that waits for another never keeps it from running.
class Pool {
 public:
  static Pool& instance() {
    static auto* pool = new Pool;  // never destroyed: its threads outlive main()
    return *pool;
  }

  void post(std::function<void()> job) {
    std::unique_lock lock(mutex_);
    if (jobs_.size() + 1 > num_idle_ && !start_thread()) {
      lock.unlock();
      run_callback_here(job);  // the caller's thread is better than none
      return;
    }
    jobs_.push_back(std::move(job));
    changed_.notify_one();
  }

 private:
  bool start_thread() {
    try {
      std::thread([this] { serve(); }).detach();
      return true;
    } catch (const std::system_error& error) {
      log::warn("comm", "no thread for a callback of Work::on_done ({}): it runs where it is",
                error.what());
      return false;
    }
  }

  void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      ++num_idle_;
      const bool has_job = changed_.wait_for(lock, kIdleTime, [this] { return !jobs_.empty(); });
      --num_idle_;
      if (!has_job) {
        return;
      }
      std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      run_callback_here(job);
      job = nullptr;  // what it holds may take its time to go
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  size_t num_idle_ = 0;
};

}  // namespace

void run_callback_here(const std::function<void()>& job) noexcept {
  try {
    job();
  } catch (const std::exception& error) {
    log::error("comm", "a callback of Work::on_done threw, which nobody can catch: {}",
               error.what());
  } catch (...) {
    log::error("comm", "a callback of Work::on_done threw, which nobody can catch");
  }
}

void run_callback(std::function<void()> job) {
  Pool::instance().post(std::move(job));
}

}  // namespace lockstep::comm
