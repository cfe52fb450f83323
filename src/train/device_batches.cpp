#include "train/device_batches.h"

#include <utility>

#include "device/memory.h"

namespace lockstep::train {

namespace {

std::shared_ptr<device::Copies> copies_for(const BatchesOptions& options) {
  if (options.copies || !device::needs_copies(options.device)) {
    return options.copies;
  }
  return device::copies_of(options.device);
}

}  // namespace

DeviceBatches::DeviceBatches(std::shared_ptr<const Dataset> data, const BatchesOptions& options)
    : DeviceBatches(Loader(std::move(data), {.num_workers = options.workers,
                                             .pin_memory = !options.device.is_cpu()}),
                    copies_for(options)) {}

DeviceBatches::DeviceBatches(Loader loader, std::shared_ptr<device::Copies> copies)
    : loader_(std::move(loader)), copies_(std::move(copies)) {}

void DeviceBatches::start(std::vector<int64_t> indices, int64_t batch_size, uint64_t seed,
                          int64_t epoch) {
  ahead_.reset();
  loader_.start(std::move(indices), batch_size, seed, epoch);
}

std::optional<Batch> DeviceBatches::next() {
  if (!copies_) {
    return loader_.next();
  }
  Fetched fetched = ahead_ ? std::move(*ahead_) : fetch();
  ahead_.reset();
  if (fetched.error) {
    std::rethrow_exception(fetched.error);
  }
  if (fetched.batch) {
    copies_->current_waits(fetched.is_copied);
    fetched.batch->for_each_tensor([this](const std::string& /*name*/, const at::Tensor& tensor) {
      copies_->current_uses(tensor);
    });
  }
  return std::move(fetched.batch);
}

void DeviceBatches::fetch_ahead() {
  if (!copies_ || ahead_) {
    return;
  }
  try {
    ahead_ = fetch();
  } catch (...) {
    ahead_ = Fetched{.batch = {}, .is_copied = {}, .error = std::current_exception()};
  }
}

DeviceBatches::Fetched DeviceBatches::fetch() {
  while (!sources_.empty() && copies_->has_passed(sources_.front().is_copied)) {
    sources_.pop_front();
  }
  std::optional<Batch> source = loader_.next();
  if (!source) {
    return {};
  }
  Fetched fetched;
  Batch host = source->map([](const at::Tensor& tensor) { return tensor.contiguous(); });
  fetched.batch = host.map([this](const at::Tensor& tensor) { return start_copy(tensor); });
  fetched.is_copied = copies_->reached(device::Lane::ToDevice);
  sources_.push_back({std::move(host), fetched.is_copied});
  return fetched;
}

at::Tensor DeviceBatches::start_copy(const at::Tensor& tensor) {
  if (!tensor.is_cpu()) {
    return tensor;  // a dataset that is on the device already
  }
  at::Tensor copy = copies_->memory_of_lane(tensor.sizes(), tensor.scalar_type());
  copies_->copy(device::Lane::ToDevice, copy, tensor);
  return copy;
}

}  // namespace lockstep::train
