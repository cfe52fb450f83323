#include "weights/chunk_reader.h"

#include <algorithm>

#include <lockstep/base/error.h>

namespace lockstep {

namespace {

// Small enough to be in the cache still when its checksum is computed.
constexpr uint64_t kPieceBytes = 512 << 10;

// The tensor whose bytes are read at this place, for the message of an error.
std::string tensor_at(const LoadPlan& plan, uint64_t position) {
  const auto after = std::upper_bound(
      plan.tensors.begin(), plan.tensors.end(), position,
      [](uint64_t value, const PlannedTensor& planned) { return value < planned.position; });
  const auto& planned = after == plan.tensors.begin() ? *after : *std::prev(after);
  return shown(planned.tensor->info.name);
}

}  // namespace

ChunkReader::ChunkReader(ReaderOptions options)
    : options_(std::move(options)), num_allowed_(options_.num_ahead), thread_([this] { run(); }) {}

ChunkReader::~ChunkReader() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ChunkReader::await(uint64_t round) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return num_read_ > round || error_ != nullptr; });
  if (num_read_ <= round) {
    std::rethrow_exception(error_);
  }
}

void ChunkReader::allow(uint64_t num_rounds) {
  {
    const std::lock_guard lock(mutex_);
    num_allowed_ = num_rounds;
  }
  changed_.notify_all();
}

uint64_t ChunkReader::bytes_read() const {
  const std::lock_guard lock(mutex_);
  return bytes_read_;
}

void ChunkReader::run() {
  for (uint64_t round = 0; round < options_.num_rounds; ++round) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return round < num_allowed_ || stops_; });
      if (stops_) {
        return;
      }
    }
    try {
      read(round);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex_);
      num_read_ += error_ ? 0 : 1;
    }
    changed_.notify_all();
    if (error_) {
      return;
    }
  }
}

void ChunkReader::read(uint64_t round) {
  const LoadPlan& plan = *options_.plan;
  const uint64_t position = (round * options_.num_readers + options_.reader) * options_.chunk_bytes;
  const std::span<std::byte> slot = options_.slot(round);
  const uint64_t end = std::min(position + options_.chunk_bytes, plan.stream_bytes);
  for (uint64_t from = position; from < end; from += kPieceBytes) {
    const uint64_t bytes = std::min(kPieceBytes, end - from);
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

}  // namespace lockstep
