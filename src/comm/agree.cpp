#include "comm/agree.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "comm/work/heard_by_all.h"

namespace lockstep::comm {

namespace {

enum class ErrorKind : char { Usage = 'U', Format = 'F', Io = 'I', Memory = 'M', Other = 'O' };

// The kind as a letter, then the message.
std::string described(const std::exception_ptr& error) {
  const auto text = [](ErrorKind kind, const char* what) {
    return std::string(1, static_cast<char>(kind)) + what;
  };
  try {
    std::rethrow_exception(error);
  } catch (const UsageError& e) {
    return text(ErrorKind::Usage, e.what());
  } catch (const FormatError& e) {
    return text(ErrorKind::Format, e.what());
  } catch (const IoError& e) {
    return text(ErrorKind::Io, e.what());
  } catch (const OutOfMemoryError& e) {
    return text(ErrorKind::Memory, e.what());
  } catch (const std::exception& e) {
    return text(ErrorKind::Other, e.what());
  } catch (...) {
    return text(ErrorKind::Other, "an exception of unknown type");
  }
}

[[noreturn]] void throw_described(const std::string& description, int rank) {
  const std::string text = fmt::format("{} (seen by rank {})", description.substr(1), rank);
  switch (static_cast<ErrorKind>(description[0])) {
    case ErrorKind::Usage:
      throw UsageError(text);
    case ErrorKind::Format:
      throw FormatError(text);
    case ErrorKind::Io:
      throw IoError(text);
    case ErrorKind::Memory:
      throw OutOfMemoryError(text);
    case ErrorKind::Other:
      break;
  }
  throw InternalError(text);
}

}  // namespace

std::vector<int64_t> gather_numbers(Group& group, int64_t number) {
  const at::Tensor own = at::empty({1}, at::kLong);
  *own.mutable_data_ptr<int64_t>() = number;
  const at::Tensor all = at::empty({group.size()}, at::kLong);
  group.all_gather(all, own);
  const auto* data = all.const_data_ptr<int64_t>();
  return {data, data + group.size()};
}

std::vector<std::string> gather_texts(Group& group, const std::string& text) {
  if (group.size() == 1) {
    return {text};
  }
  const std::vector<int64_t> sizes = gather_numbers(group, static_cast<int64_t>(text.size()));
  const int64_t widest = *std::max_element(sizes.begin(), sizes.end());
  std::vector<std::string> texts(sizes.size());
  if (widest == 0) {
    return texts;
  }
  const at::Tensor own = at::zeros({widest}, at::kByte);
  std::copy(text.begin(), text.end(), own.mutable_data_ptr<uint8_t>());
  const at::Tensor all = at::zeros({widest * group.size()}, at::kByte);
  group.all_gather(all, own);
  const uint8_t* data = all.const_data_ptr<uint8_t>();
  for (size_t i = 0; i < texts.size(); ++i) {
    const uint8_t* begin = data + static_cast<int64_t>(i) * widest;
    texts[i].assign(begin, begin + sizes[i]);
  }
  return texts;
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

std::string broadcast_text(Group& group, const std::string& text, int root) {
  const std::vector<uint8_t> bytes = broadcast_bytes(group, {text.begin(), text.end()}, root);
  return {bytes.begin(), bytes.end()};
}

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
  const std::string description =
      broadcast_text(group, group.rank() == rank ? described(error) : "", rank);
  wait_until_all_heard(group);
  throw_described(description, rank);
}

std::string first_text(const std::vector<std::string>& texts) {
  const auto found = std::find_if(texts.begin(), texts.end(),
                                  [](const std::string& text) { return !text.empty(); });
  return found == texts.end() ? "" : *found;
}

}  // namespace lockstep::comm
