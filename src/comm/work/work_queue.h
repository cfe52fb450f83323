#pragma once

// The operations of one group, one after the other in the order in which they were started.
//
// A blocking operation that finds the queue empty runs on the calling thread, at no cost. Those
// started asynchronously run on a thread of the queue, which is started with the first of them and
// sleeps while there is nothing to do. A caller that waits for one that is not running yet runs the
// queue up to it by itself.

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/backends/backend.h"

namespace lockstep::comm {

class WorkQueue {
 public:
  // Carries out one call; throws if it fails.
  using Execute = std::function<void(const Call& call)>;

  explicit WorkQueue(Execute execute) : execute_(std::move(execute)) {}
  ~WorkQueue() { stop(); }
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  void run(const Call& call);
  std::shared_ptr<WorkState> push(Call call);

  // Nothing waits to be carried out, nor is being so. For the thread that starts operations, which
  // alone can change that.
  bool is_idle() const;

  // Waits until everything has been carried out. Returns false at the limit.
  bool drain(base::Deadline limit);

  // Ends the thread once the queue is empty. No calls may follow.
  void stop();

 private:
  class Item;

  void serve();  // the thread
  // The queue must not be empty, and no thread may be running it.
  void execute_front(std::unique_lock<std::mutex>& lock);

  const Execute execute_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Item>> queue_;
  bool is_busy_ = false;  // a thread carries out a call
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace lockstep::comm
