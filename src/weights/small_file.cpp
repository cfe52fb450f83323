#include "weights/small_file.h"

#include <vector>

#include <lockstep/base/error.h>
#include <lockstep/comm/group.h>

#include "comm/agree.h"
#include "storage/storage.h"

namespace lockstep::weights {
namespace {

constexpr uint64_t kMaxBytes = 16'000'000;

// One byte says whether there is a file, so that an empty file differs from none.
std::vector<uint8_t> read(const std::string& folder, const std::string& name) {
  const auto storage = storage::open_storage(folder);
  const auto found = storage->find(name);
  if (!found) {
    return {0};
  }
  if (found->size_bytes > kMaxBytes) {
    throw FormatError("{} in {} has {} bytes, the limit is {}", name, folder, found->size_bytes,
                      kMaxBytes);
  }
  const auto source = storage->open(name);
  const std::string text = source->read_text(0, source->size());
  std::vector<uint8_t> bytes = {1};
  bytes.insert(bytes.end(), text.begin(), text.end());
  return bytes;
}

}  // namespace

std::optional<std::string> read_small_file(const std::string& folder, const std::string& name,
                                           Group& group) {
  std::vector<uint8_t> bytes;
  const auto error = comm::caught([&] {
    if (group.rank() == 0) {
      bytes = read(folder, name);
    }
  });
  comm::throw_together(group, error);
  bytes = comm::broadcast_bytes(group, std::move(bytes));
  if (bytes[0] == 0) {
    return std::nullopt;
  }
  return std::string(bytes.begin() + 1, bytes.end());
}

}  // namespace lockstep::weights
