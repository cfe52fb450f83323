#include "weights/checksums.h"

#include <algorithm>

#include <lockstep/base/error.h>

#include "formats/archive/crc32.h"

namespace lockstep::weights {

Checksums::Checksums(const LoadPlan& plan, uint64_t chunk_bytes)
    : plan_(plan), chunk_bytes_(chunk_bytes) {
  size_t count = 0;
  for (const PlannedRecord& record : plan_.records) {
    first_piece_.push_back(count);
    const uint64_t end = record.position + record.sum->size_bytes;
    count += (end - 1) / chunk_bytes_ - record.position / chunk_bytes_ + 1;
  }
  pieces_.resize(count);
}

void Checksums::add(uint64_t position, std::span<const std::byte> bytes) {
  const auto& records = plan_.records;
  const auto ends_before = [](const PlannedRecord& record, uint64_t value) {
    return record.position + record.sum->size_bytes <= value;
  };
  auto record = std::lower_bound(records.begin(), records.end(), position, ends_before);
  for (; record != records.end() && record->position < position + bytes.size(); ++record) {
    const uint64_t begin = std::max(record->position, position);
    const uint64_t end =
        std::min(record->position + record->sum->size_bytes, position + bytes.size());
    const size_t piece = first_piece_[static_cast<size_t>(record - records.begin())] +
                         (begin / chunk_bytes_ - record->position / chunk_bytes_);
    pieces_[piece] = formats::crc32(pieces_[piece], bytes.subspan(begin - position, end - begin));
  }
}

void Checksums::check() const {
  for (size_t i = 0; i < plan_.records.size(); ++i) {
    const PlannedRecord& record = plan_.records[i];
    const uint64_t end = record.position + record.sum->size_bytes;
    uint32_t crc = 0;
    size_t piece = first_piece_[i];
    for (uint64_t begin = record.position; begin < end; ++piece) {
      const uint64_t next = std::min((begin / chunk_bytes_ + 1) * chunk_bytes_, end);
      crc = formats::crc32_combine(crc, pieces_[piece], next - begin);
      begin = next;
    }
    if (crc != record.sum->crc) {
      throw FormatError(
          "{}: tensor {} is damaged: storage {} ({} bytes at offset {}) has the CRC-32 {:08x}, and "
          "{:08x} was written; fetch the file again",
          record.file->location, base::shown(record.tensor->info.name),
          base::shown(record.sum->record), record.sum->size_bytes, record.sum->offset_bytes, crc,
          record.sum->crc);
    }
  }
}

}  // namespace lockstep::weights
