#pragma once

// The batches of a loader, on the device that a rank computes on. On the CPU they are the loader's
// own. To a GPU they are copied from pinned memory on a stream of their own, each while the step
// before it computes.

#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include <lockstep/data/loader.h>

#include "device/copies.h"

namespace lockstep::train {

struct BatchesOptions {
  int workers = 2;
  at::Device device = at::kCPU;
  // What others have made copies by, on the same thread; null makes new ones, with streams of their
  // own and memory that libtorch keeps for these.
  std::shared_ptr<device::Copies> copies = {};
};

// Threads: one at a time.
class DeviceBatches {
 public:
  DeviceBatches(std::shared_ptr<const Dataset> data, const BatchesOptions& options);
  // Copies by `copies` (null: none are made) from batches that the loader has made ready for them.
  DeviceBatches(Loader loader, std::shared_ptr<device::Copies> copies);

  // As Loader::start().
  void start(std::vector<int64_t> indices, int64_t batch_size, uint64_t seed, int64_t epoch);

  // As Loader::next(). What the caller queues from here on comes after the copy.
  std::optional<Batch> next();

  // Takes the next batch from the loader, waiting for it if need be, and starts its copy. Call it
  // when the work on the last one is queued. What goes wrong is thrown by next(). Without copies it
  // does nothing.
  void fetch_ahead();

  // What the batches are copied by; null where they are not.
  const std::shared_ptr<device::Copies>& copies() const { return copies_; }

 private:
  struct Fetched {
    std::optional<Batch> batch;
    device::MomentPtr is_copied;
    std::exception_ptr error;
  };
  struct Source {
    Batch batch;
    device::MomentPtr is_copied;
  };

  Fetched fetch();
  at::Tensor start_copy(const at::Tensor& tensor);

  Loader loader_;
  std::shared_ptr<device::Copies> copies_;
  std::optional<Fetched> ahead_;
  std::deque<Source> sources_;  // on the host, kept until they are copied
};

}  // namespace lockstep::train
