#include <algorithm>
#include <unordered_map>

#include <lockstep/base/error.h>

#include "formats/little_endian.h"
#include "formats/torch/torch_file.h"
#include "formats/torch/unpickler.h"

namespace lockstep::formats {

namespace {

using Kind = PickleValue::Kind;
using namespace std::string_view_literals;

constexpr uint64_t kUsualPickleBytes = 1u << 20;
constexpr std::string_view kLegacyMagic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"sv;
constexpr int64_t kProtocolVersion = 1001;
constexpr uint64_t kCountBytes = 8;

// Pickles that follow one another.
class PickleStream {
 public:
  PickleStream(const base::ByteSource& source, uint64_t max_bytes)
      : source_(source), bytes_(source.read_text(0, std::min(source.size(), max_bytes))) {}

  Pickle next(PersistentIds ids = PersistentIds::None) {
    Pickle pickle = unpickle(std::string_view(bytes_).substr(offset_),
                             {.file = source_.name(), .offset = offset_, .ids = ids});
    offset_ += pickle.size_bytes;
    return pickle;
  }

  uint64_t offset() const { return offset_; }

 private:
  const base::ByteSource& source_;
  std::string bytes_;
  uint64_t offset_ = 0;
};

void check_head(const base::ByteSource& source, PickleStream& stream) {
  const PickleValue magic = stream.next().root;
  if (magic.kind != Kind::BigInt || magic.text != kLegacyMagic) {
    throw FormatError("{}: not the magic number of torch's old format at offset 0", source.name());
  }
  const PickleValue version = stream.next().root;
  if (version.kind != Kind::Int || version.integer != kProtocolVersion) {
    throw FormatError("{}: version {} of torch's old format is not known", source.name(),
                      version.integer);
  }
  check_little_endian(source, stream.next().root);
}

// Count and elements of each storage, in the order of the keys.
std::vector<TorchStorage> read_storages(const base::ByteSource& source, const Pickle& pickle,
                                        const PickleValue& keys, uint64_t offset) {
  std::vector<TorchStorage> storages(pickle.storages.size());
  std::vector<bool> is_found(storages.size());
  if (keys.kind != Kind::List || keys.items.size() != storages.size()) {
    throw FormatError("{}: {} storages follow at offset {}, and the tensors use {}", source.name(),
                      keys.items.size(), offset, storages.size());
  }
  std::unordered_map<std::string_view, size_t> index_of;
  for (size_t i = 0; i < storages.size(); ++i) {
    index_of.emplace(pickle.storages[i].key, i);
  }
  for (const PickleValue& key : keys.items) {
    const auto found = index_of.find(key.text);
    if (key.kind != Kind::String || found == index_of.end() || is_found[found->second]) {
      throw FormatError("{}: storage {} at offset {} is not used by any tensor, or there twice",
                        source.name(), base::shown(key.text), offset);
    }
    const PickledStorage& wanted = pickle.storages[found->second];
    const auto count = number_at<uint64_t>(source.read_text(offset, kCountBytes), 0);
    offset += kCountBytes;
    if (checked_multiply(count, wanted.element_bytes) != wanted.size_bytes) {
      throw FormatError(
          "{}: storage {} at offset {} has {} elements of {} bytes, and the pickle "
          "says {} bytes",
          source.name(), base::shown(wanted.key), offset, count, wanted.element_bytes,
          wanted.size_bytes);
    }
    if (wanted.size_bytes > source.size() - offset) {
      throw FormatError(
          "{}: storage {} ({} bytes at offset {}) ends beyond the file's {}; it is "
          "truncated",
          source.name(), base::shown(wanted.key), wanted.size_bytes, offset, source.size());
    }
    storages[found->second] = {
        .key = wanted.key, .offset_bytes = offset, .size_bytes = wanted.size_bytes};
    is_found[found->second] = true;
    offset += wanted.size_bytes;
  }
  if (offset != source.size()) {
    throw FormatError("{}: {} bytes follow the last storage at offset {}", source.name(),
                      source.size() - offset, offset);
  }
  return storages;
}

TorchFile read_within(const base::ByteSource& source, uint64_t max_pickle_bytes) {
  PickleStream stream(source, max_pickle_bytes);
  check_head(source, stream);
  Pickle pickle = stream.next(PersistentIds::Legacy);
  const PickleValue keys = stream.next().root;
  std::vector<TorchStorage> storages = read_storages(source, pickle, keys, stream.offset());
  return place_tensors(source, std::move(pickle), std::move(storages));
}

}  // namespace

TorchFile read_torch_legacy(const base::ByteSource& source) {
  // Nothing says how long the pickles are, and those of most models are short.
  if (source.size() > kUsualPickleBytes) {
    try {
      return read_within(source, kUsualPickleBytes);
    } catch (const FormatError&) {
    }
  }
  return read_within(source, kMaxPickleBytes);
}

}  // namespace lockstep::formats
