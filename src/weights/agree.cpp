#include "weights/agree.h"

#include <algorithm>
#include <cstring>
#include <string>

#include <ATen/ops/empty.h>

#include "comm/work/heard_by_all.h"

namespace lockstep::weights {

namespace {

enum class Kind : char { Usage = 'U', Format = 'F', Io = 'I', Other = 'O' };

// The first letter is the kind.
std::string described(const std::exception_ptr& error) {
  const auto text = [](Kind kind, const char* what) {
    return std::string(1, static_cast<char>(kind)) + what;
  };
  try {
    std::rethrow_exception(error);
  } catch (const UsageError& e) {
    return text(Kind::Usage, e.what());
  } catch (const FormatError& e) {
    return text(Kind::Format, e.what());
  } catch (const IoError& e) {
    return text(Kind::Io, e.what());
  } catch (const std::exception& e) {
    return text(Kind::Other, e.what());
  } catch (...) {
    return text(Kind::Other, "an exception of unknown type");
  }
}

[[noreturn]] void raise(const std::string& description, int rank) {
  const std::string text = fmt::format("{} (seen by rank {})", description.substr(1), rank);
  switch (static_cast<Kind>(description[0])) {
    case Kind::Usage:
      throw UsageError(text);
    case Kind::Format:
      throw FormatError(text);
    case Kind::Io:
      throw IoError(text);
    case Kind::Other:
      break;
  }
  throw InternalError(text);
}

}  // namespace

void throw_together(Group& group, std::exception_ptr error) {
  if (group.size() == 1) {
    if (error) {
      std::rethrow_exception(error);
    }
    return;
  }
  const std::vector<int64_t> failed = gather_numbers(group, error ? 1 : 0);
  const auto first = std::find(failed.begin(), failed.end(), 1);
  if (first == failed.end()) {
    return;
  }
  const int rank = static_cast<int>(first - failed.begin());
  std::vector<uint8_t> bytes;
  if (group.rank() == rank) {
    const std::string text = described(error);
    bytes.assign(text.begin(), text.end());
  }
  bytes = broadcast_bytes(group, std::move(bytes), rank);
  comm::wait_until_all_heard(group);
  raise(std::string(bytes.begin(), bytes.end()), rank);
}

std::vector<uint8_t> broadcast_bytes(Group& group, std::vector<uint8_t> bytes, int root) {
  if (group.size() == 1) {
    return bytes;
  }
  const at::Tensor size = at::empty({1}, at::kLong);
  *size.mutable_data_ptr<int64_t>() = static_cast<int64_t>(bytes.size());
  group.broadcast(size, {.root = root});
  const int64_t count = *size.const_data_ptr<int64_t>();
  const at::Tensor data = at::empty({count}, at::kByte);
  if (group.rank() == root) {
    std::copy(bytes.begin(), bytes.end(), data.mutable_data_ptr<uint8_t>());
  }
  group.broadcast(data, {.root = root});
  bytes.resize(static_cast<size_t>(count));
  std::copy_n(data.const_data_ptr<uint8_t>(), count, bytes.begin());
  return bytes;
}

std::vector<int64_t> gather_numbers(Group& group, int64_t number) {
  const at::Tensor own = at::empty({1}, at::kLong);
  *own.mutable_data_ptr<int64_t>() = number;
  const at::Tensor all = at::empty({group.size()}, at::kLong);
  group.all_gather(all, own);
  const auto* data = all.const_data_ptr<int64_t>();
  return {data, data + group.size()};
}

}  // namespace lockstep::weights
