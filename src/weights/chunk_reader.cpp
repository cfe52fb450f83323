#include "weights/chunk_reader.h"

#include <algorithm>

#include <lockstep/base/error.h>

namespace lockstep::weights {

namespace {

// The tensor whose bytes are read at this place, for the message of an error.
std::string tensor_at(const LoadPlan& plan, uint64_t position) {
  const auto after = std::upper_bound(
      plan.tensors.begin(), plan.tensors.end(), position,
      [](uint64_t value, const PlannedTensor& planned) { return value < planned.position; });
  const auto& planned = after == plan.tensors.begin() ? *after : *std::prev(after);
  return base::shown(planned.tensor->info.name);
}

}  // namespace

ChunkReader::ChunkReader(ReaderOptions options)
    : options_(std::move(options)),
      num_allowed_(std::min(options_.num_ahead, options_.num_rounds)),
      is_read_(static_cast<size_t>(options_.num_rounds)) {
  for (int i = 0; i < options_.num_threads; ++i) {
    threads_.emplace_back([this] { run(); });
  }
}

ChunkReader::~ChunkReader() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void ChunkReader::await(uint64_t round) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return is_read_[round] || error_ != nullptr; });
  if (!is_read_[round]) {
    std::rethrow_exception(error_);
  }
}

void ChunkReader::allow(uint64_t num_rounds) {
  {
    const std::lock_guard lock(mutex_);
    num_allowed_ = std::min(num_rounds, options_.num_rounds);
  }
  changed_.notify_all();
}

uint64_t ChunkReader::bytes_read() const {
  const std::lock_guard lock(mutex_);
  return bytes_read_;
}

void ChunkReader::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] {
      return stops_ || next_round_ < num_allowed_ || next_round_ == options_.num_rounds;
    });
    if (stops_ || next_round_ == options_.num_rounds) {
      return;
    }
    const uint64_t round = next_round_++;
    lock.unlock();
    std::exception_ptr error;
    try {
      read(round);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    is_read_[round] = error == nullptr;
    if (error) {
      error_ = error_ ? error_ : error;
      stops_ = true;
    }
    changed_.notify_all();
  }
}

void ChunkReader::read(uint64_t round) {
  const LoadPlan& plan = *options_.plan;
  const uint64_t position = (round * options_.num_readers + options_.reader) * options_.chunk_bytes;
  const std::span<std::byte> slot = options_.slot(round);
  const uint64_t end = std::min(position + options_.chunk_bytes, plan.stream_bytes);
  for (uint64_t from = position; from < end; from += options_.piece_bytes) {
    const uint64_t bytes = std::min(options_.piece_bytes, end - from);
    const auto piece = slot.subspan(from - position, bytes);
    for (const ReadPart& part : parts_of(plan, from, bytes)) {
      try {
        options_.sources[part.file]->read_at(part.offset, piece.subspan(part.at, part.bytes));
      } catch (const IoError& error) {
        throw IoError("{} (while reading tensor {})", error.what(),
                      tensor_at(plan, from + part.at));
      }
      const std::lock_guard lock(mutex_);
      bytes_read_ += part.bytes;
    }
    if (options_.checksums != nullptr) {
      options_.checksums->add(from, piece);
    }
  }
}

}  // namespace lockstep::weights
