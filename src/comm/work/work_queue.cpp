#include "comm/work/work_queue.h"

#include <utility>

#include <lockstep/base/log.h>

namespace lockstep::comm {

class WorkQueue::Item : public WorkState, public std::enable_shared_from_this<Item> {
 public:
  Item(WorkQueue& queue, Call call) : queue_(queue), call_(std::move(call)) {}

  // The queue outlives every waiter: the group that owns it is alive while it is used, and items
  // that outlive the group are done.
  bool wait(base::Deadline limit) override {
    if (!is_done_.load()) {
      std::unique_lock lock(queue_.mutex_);
      const auto settled = [this] { return is_done_.load(); };
      while (!settled()) {
        if (limit.is_never() && !queue_.is_busy_) {
          queue_.execute_front(lock);  // itself, or what stands before it
        } else if (limit.is_never()) {
          queue_.changed_.wait(lock, [&] { return settled() || !queue_.is_busy_; });
        } else if (!queue_.changed_.wait_until(lock, limit.when(), settled)) {
          return false;
        }
      }
    }
    if (error_) {
      std::rethrow_exception(error_);
    }
    return true;
  }

  bool done() const override { return is_done_.load(); }

  void on_done(std::function<void(std::exception_ptr)> callback) override {
    {
      const std::lock_guard lock(callback_mutex_);
      if (!is_done_.load()) {
        callbacks_.push_back(std::move(callback));
        return;
      }
    }
    callback(error_);
  }

  // The thread that runs the queue calls it, without the queue's lock.
  void execute() {
    std::exception_ptr error;
    try {
      queue_.execute_(call_);
    } catch (...) {
      error = std::current_exception();
    }
    std::vector<std::function<void(std::exception_ptr)>> callbacks;
    {
      const std::lock_guard lock(callback_mutex_);
      error_ = error;
      is_done_.store(true);  // publishes error_ to done() and wait()
      callbacks.swap(callbacks_);
    }
    for (const auto& callback : callbacks) {
      callback(error_);
    }
  }

 private:
  WorkQueue& queue_;
  const Call call_;
  std::atomic<bool> is_done_{false};
  std::exception_ptr error_;  // written before is_done_
  std::mutex callback_mutex_;
  std::vector<std::function<void(std::exception_ptr)>> callbacks_;
};

void WorkQueue::run(const Call& call) {
  std::unique_lock lock(mutex_);
  if (is_busy_ || !queue_.empty()) {
    lock.unlock();
    push(call)->wait(base::Deadline::never());
    return;
  }
  is_busy_ = true;
  lock.unlock();
  const auto release = [&] {
    lock.lock();
    is_busy_ = false;
    if (!queue_.empty()) {  // started by another thread meanwhile
      changed_.notify_all();
    }
  };
  try {
    execute_(call);
  } catch (...) {
    release();
    throw;
  }
  release();
}

std::shared_ptr<WorkState> WorkQueue::push(Call call) {
  auto item = std::make_shared<Item>(*this, std::move(call));
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(item);
    if (!thread_.joinable()) {
      thread_ = std::thread([this] { serve(); });
    }
  }
  changed_.notify_all();
  return item;
}

void WorkQueue::execute_front(std::unique_lock<std::mutex>& lock) {
  const std::shared_ptr<Item> item = queue_.front();
  queue_.pop_front();
  is_busy_ = true;
  lock.unlock();
  item->execute();
  lock.lock();
  is_busy_ = false;
  changed_.notify_all();
}

void WorkQueue::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return (!queue_.empty() && !is_busy_) || is_stopping_; });
    if (!queue_.empty() && !is_busy_) {
      execute_front(lock);
    } else if (queue_.empty()) {
      return;
    } else {
      changed_.wait(lock, [this] { return !is_busy_; });
    }
  }
}

bool WorkQueue::is_idle() const {
  const std::lock_guard lock(mutex_);
  return queue_.empty() && !is_busy_;
}

bool WorkQueue::drain(base::Deadline limit) {
  std::unique_lock lock(mutex_);
  const auto empty = [this] { return queue_.empty() && !is_busy_; };
  if (limit.is_never()) {
    changed_.wait(lock, empty);
    return true;
  }
  return changed_.wait_until(lock, limit.when(), empty);
}

void WorkQueue::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

}  // namespace lockstep::comm
