#pragma once

// The ids of words that were seen before: most words of a text are few.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <sys/mman.h>
#include <vector>

#include "base/unique_fd.h"

namespace lockstep::tokenizers {

// Ids being collected. As a vector, but eight ids are copied as one when there are fewer.
class IdList {
 public:
  void cut(size_t size) { size_ = size; }
  size_t size() const { return size_; }
  std::span<const int32_t> ids() const { return {ids_.data(), size_}; }

  void add(int32_t id) {
    reserve(1);
    ids_[size_++] = id;
  }
  // Reads kChunk ids from `ids`, keeps `count` of them.
  void add_chunk(const int32_t* ids, size_t count) {
    reserve(kChunk);
    std::memcpy(&ids_[size_], ids, kChunk * sizeof(int32_t));
    size_ += count;
  }

  static constexpr size_t kChunk = 8;

 private:
  void reserve(size_t more) {
    if (size_ + more > ids_.size()) {
      ids_.resize(std::max<size_t>(256, 2 * (size_ + more)));
    }
  }

  std::vector<int32_t> ids_;
  size_t size_ = 0;
};

// Each word has one place; a newer one takes it. Not thread-safe: every thread has its own.
class WordCache {
 public:
  WordCache()
      : memory_(-1, kPlaces * sizeof(Entry), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS) {}

  // Appends the ids of `word` and returns true, if they are known. `word` is not empty.
  bool find(std::string_view word, IdList& ids) const {
    if (word.size() > kMaxBytes) {
      return false;
    }
    const Entry& entry = entries()[place_of(word)];
    if (entry.num_bytes != word.size() || !same(word, entry.bytes)) {
      return false;
    }
    ids.add_chunk(entry.ids, entry.num_ids);
    return true;
  }

  void store(std::string_view word, std::span<const int32_t> ids) {
    if (word.size() > kMaxBytes || ids.size() > IdList::kChunk) {
      return;
    }
    Entry& entry = entries()[place_of(word)];
    entry.num_bytes = static_cast<uint8_t>(word.size());
    entry.num_ids = static_cast<uint8_t>(ids.size());
    std::memcpy(entry.bytes, word.data(), word.size());
    std::copy(ids.begin(), ids.end(), entry.ids);
  }

 private:
  static constexpr size_t kMaxBytes = 30;
  static constexpr size_t kPlaces = 1u << 14;  // 1 MiB

  struct Entry {        // a cache line
    uint8_t num_bytes;  // 0: free
    uint8_t num_ids;
    char bytes[kMaxBytes];
    int32_t ids[IdList::kChunk];
  };
  static_assert(sizeof(Entry) == 64);

  template <typename Number>
  static uint64_t load(const char* at) {
    Number number = 0;
    std::memcpy(&number, at, sizeof(number));
    return number;
  }

  // Two numbers that together hold all bytes of up to 16; more words of 8 follow in a longer one.
  struct Ends {
    uint64_t first;
    uint64_t last;
  };
  static Ends ends(const char* at, size_t size) {
    if (size >= 8) {
      return {load<uint64_t>(at), load<uint64_t>(at + size - 8)};
    }
    if (size >= 4) {
      return {load<uint32_t>(at), load<uint32_t>(at + size - 4)};
    }
    return {load<uint8_t>(at), load<uint8_t>(at + size / 2) << 8 | load<uint8_t>(at + size - 1)};
  }

  static size_t place_of(std::string_view word) {
    constexpr uint64_t kFactor = 0x9E3779B97F4A7C15u;
    const Ends parts = ends(word.data(), word.size());
    uint64_t hash = (parts.first ^ word.size()) * kFactor;
    hash = (hash ^ hash >> 29 ^ parts.last) * kFactor;
    for (size_t at = 8; at + 8 < word.size(); at += 8) {
      hash = (hash ^ hash >> 29 ^ load<uint64_t>(word.data() + at)) * kFactor;
    }
    return hash >> 50;
  }

  static bool same(std::string_view word, const char* bytes) {
    const Ends a = ends(word.data(), word.size());
    const Ends b = ends(bytes, word.size());
    if (a.first != b.first || a.last != b.last) {
      return false;
    }
    return word.size() <= 16 || std::memcmp(word.data(), bytes, word.size()) == 0;
  }

  Entry* entries() const { return reinterpret_cast<Entry*>(memory_.data()); }

  base::Mapping memory_;  // zeros, and pages that are used only when they are touched
};

}  // namespace lockstep::tokenizers
