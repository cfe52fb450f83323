#pragma once

// What pieces or batches came to, added up in a row for each: the losses, how many samples counted,
// how many of these were correct. What is on a device is added there and stays there until it is
// read, so that adding does not wait for the device.

#include <ATen/core/Tensor.h>

#include <lockstep/train/task.h>

namespace lockstep::train {

class Tally {
 public:
  enum Column { Loss, Counted, Correct, NumColumns };

  explicit Tally(int64_t num_rows);

  void add(int64_t row, const TaskOutput& output, const Batch& batch);
  // With the loss times the number that it is the mean of; nothing counted has no loss.
  void add_sum(int64_t row, const TaskOutput& output, const Batch& batch);

  // The rows as float64 [rows, NumColumns] on the host. Waits for the device, once. What is added
  // later is added to them.
  const at::Tensor& read();

  void clear();

  // What the host has added and not the device; and rows of it that are added without an output,
  // for outputs that only the device makes anew.
  const at::Tensor& known() const { return host_; }
  void add_known(const at::Tensor& rows) { host_ += rows; }

 private:
  void add_on_device(int64_t row, const at::Tensor& loss, const Count& counted,
                     const Count& correct);

  at::Tensor host_;
  at::Tensor device_;  // undefined until a device has something to add
};

// TaskOutput::num_counted, or the samples of the batch where a task does not say.
Count num_counted(const TaskOutput& output, const Batch& batch);

}  // namespace lockstep::train
