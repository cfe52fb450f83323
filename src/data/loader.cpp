#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include <ATen/Context.h>

#include <lockstep/base/error.h>
#include <lockstep/data/loader.h>

#include "data/sample_keys.h"

namespace lockstep {

namespace {

constexpr int kMaxWorkers = 256;

// What one start() asked for.
struct Round {
  std::vector<SampleKey> samples;
  int64_t batch_size = 1;

  int64_t num_batches() const {
    return (static_cast<int64_t>(samples.size()) + batch_size - 1) / batch_size;
  }
  std::span<const SampleKey> batch(int64_t index) const {
    const auto first = static_cast<size_t>(index * batch_size);
    const auto size = static_cast<size_t>(batch_size);
    return std::span(samples).subspan(first, std::min(size, samples.size() - first));
  }
};

// A batch, or why there is none.
struct PreparedBatch {
  bool is_ready = false;
  Batch batch;
  std::exception_ptr error;
};

}  // namespace

// Workers take batches in order and put them into slots, batch i into slot i % prefetch; a slot is
// free once its batch was given out, so that at most `prefetch` are ready or under way.
class Loader::Prefetcher {
 public:
  Prefetcher(std::shared_ptr<const Dataset> data, LoaderOptions options)
      : data_(std::move(data)),
        options_(options),
        round_(std::make_shared<Round>()),
        slots_(static_cast<size_t>(options.prefetch)) {
    try {
      for (int i = 0; i < options.num_workers; ++i) {
        workers_.emplace_back([this] { work(); });
      }
    } catch (...) {
      stop();
      throw;
    }
  }

  ~Prefetcher() { stop(); }
  Prefetcher(const Prefetcher&) = delete;

  const Dataset& data() const { return *data_; }

  void start(std::shared_ptr<const Round> round) {
    std::vector<PreparedBatch> dropped(slots_.size());  // freed outside of the lock
    {
      const std::lock_guard lock(mutex_);
      round_ = std::move(round);
      slots_.swap(dropped);
      next_taken_ = 0;
      next_given_ = 0;
    }
    may_take_.notify_all();
  }

  std::optional<Batch> next() {
    std::unique_lock lock(mutex_);
    if (next_given_ == round_->num_batches()) {
      return std::nullopt;
    }
    PreparedBatch made;
    if (workers_.empty()) {
      made = make(*round_, next_given_++);
    } else {
      PreparedBatch& slot = slots_[static_cast<size_t>(next_given_) % slots_.size()];
      is_made_.wait(lock, [&] { return slot.is_ready; });
      made = std::exchange(slot, {});
      ++next_given_;
    }
    if (made.error) {
      next_taken_ = next_given_ = round_->num_batches();
      std::rethrow_exception(made.error);
    }
    lock.unlock();
    may_take_.notify_one();
    return std::move(made.batch);
  }

 private:
  bool may_take() const {
    return next_taken_ < round_->num_batches() && next_taken_ < next_given_ + options_.prefetch;
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      may_take_.wait(lock, [this] { return is_over_ || may_take(); });
      if (is_over_) {
        return;
      }
      const std::shared_ptr<const Round> round = round_;
      const int64_t index = next_taken_++;
      lock.unlock();
      PreparedBatch made = make(*round, index);
      lock.lock();
      if (round == round_ && index >= next_given_) {  // otherwise it is not wanted any more
        slots_[static_cast<size_t>(index) % slots_.size()] = std::move(made);
        is_made_.notify_one();
      }
    }
  }

  PreparedBatch make(const Round& round, int64_t index) const {
    PreparedBatch made{.is_ready = true, .batch = {}, .error = {}};
    try {
      made.batch = data_->batch(round.batch(index));
      if (options_.pin_memory && at::globalContext().hasCUDA()) {
        made.batch = made.batch.pin_memory();
      }
    } catch (...) {
      made.error = std::current_exception();
    }
    return made;
  }

  void stop() noexcept {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    may_take_.notify_all();
    for (std::thread& worker : workers_) {
      worker.join();
    }
  }

  const std::shared_ptr<const Dataset> data_;
  const LoaderOptions options_;
  std::mutex mutex_;                  // of all below
  std::condition_variable may_take_;  // workers wait for it
  std::condition_variable is_made_;   // next() waits for it
  std::shared_ptr<const Round> round_;
  std::vector<PreparedBatch> slots_;
  int64_t next_taken_ = 0;
  int64_t next_given_ = 0;
  bool is_over_ = false;
  std::vector<std::thread> workers_;
};

Loader::Loader(std::shared_ptr<const Dataset> data, LoaderOptions options) {
  if (data == nullptr) {
    throw UsageError("loader: it was given no dataset");
  }
  if (options.num_workers < 0 || options.num_workers > kMaxWorkers) {
    throw UsageError("loader: num_workers is {}, it must be from 0 to {}", options.num_workers,
                     kMaxWorkers);
  }
  if (options.prefetch < 1) {
    throw UsageError("loader: prefetch is {}, it must be at least 1", options.prefetch);
  }
  prefetcher_ = std::make_unique<Prefetcher>(std::move(data), options);
}

Loader::~Loader() = default;
Loader::Loader(Loader&&) noexcept = default;
Loader& Loader::operator=(Loader&&) noexcept = default;

void Loader::start(std::vector<int64_t> indices, int64_t batch_size, uint64_t seed, int64_t epoch) {
  if (batch_size < 1) {
    throw UsageError("loader: batch_size is {}, it must be at least 1", batch_size);
  }
  data::check_indices(indices, prefetcher_->data().size());
  auto round = std::make_shared<Round>();
  round->samples = data::make_sample_keys(indices, seed, epoch);
  round->batch_size = std::clamp<int64_t>(batch_size, 1, std::ssize(indices) + 1);  // no overflow
  prefetcher_->start(std::move(round));
}

std::optional<Batch> Loader::next() {
  return prefetcher_->next();
}

const Dataset& Loader::dataset() const {
  return prefetcher_->data();
}

}  // namespace lockstep
