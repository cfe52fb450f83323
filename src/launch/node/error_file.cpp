#include "launch/node/error_file.h"

#include <exception>
#include <filesystem>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/env.h"
#include "base/secret.h"
#include "base/unique_fd.h"

namespace lockstep::launch {

namespace {

using nlohmann::json;

constexpr size_t kMaxFileBytes = 1 << 20;

const json* find(const json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() ? &*found : nullptr;
}

std::string text_of(const json* value) {
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

int64_t seconds_of(const json* value) {
  if (value != nullptr && value->is_number_integer()) {
    return value->get<int64_t>();
  }
  return base::parse_integer(text_of(value), 0, INT64_MAX).value_or(0);  // PyTorch writes a string
}

std::optional<WorkerError> read(const std::string& path) {
  // Anything but a file could make the reader wait.
  if (!std::filesystem::is_regular_file(std::filesystem::symlink_status(path))) {
    return std::nullopt;
  }
  const json whole = json::parse(base::read_file(path, kMaxFileBytes));
  const json* outer = find(whole, "message");
  if (outer == nullptr) {
    return std::nullopt;
  }
  WorkerError error;
  error.message = text_of(outer->is_object() ? find(*outer, "message") : outer);
  if (error.message.empty()) {
    return std::nullopt;
  }
  error.message.resize(std::min(error.message.size(), kMaxErrorMessage));
  if (const json* extra = find(*outer, "extraInfo")) {
    error.callstack = text_of(find(*extra, "py_callstack"));
    error.timestamp = seconds_of(find(*extra, "timestamp"));
  }
  if (error.callstack.size() > kMaxCallstack) {
    error.callstack.erase(0, error.callstack.size() - kMaxCallstack);
  }
  return error;
}

}  // namespace

std::string new_error_file() {
  const base::Env env;
  for (const char* folder : {"XDG_RUNTIME_DIR", "TMPDIR"}) {
    const std::string path = env.text(folder).value_or("");
    if (path.starts_with('/') && ::access(path.c_str(), W_OK) == 0) {
      return path + "/lockstep_error_" + base::make_secret() + ".json";
    }
  }
  return "/tmp/lockstep_error_" + base::make_secret() + ".json";
}

std::optional<WorkerError> read_error_file(const std::string& path) noexcept {
  try {
    return read(path);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace lockstep::launch
