#include "comm/c10d/torch_store.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <lockstep/base/error.h>

namespace lockstep::comm {
namespace {

template <typename Use>
auto with_store(const base::Endpoint& server, std::chrono::milliseconds timeout, Use use) {
  try {
    c10d::TCPStoreOptions options;
    options.port = server.port;
    options.isServer = false;
    options.waitWorkers = false;
    options.timeout = timeout;
    c10d::TCPStore store(server.host, options);
    return use(store);
  } catch (const std::exception& error) {  // c10d's errors have no common lockstep type
    throw IoError("init: the store of torchrun at {} (MASTER_ADDR:MASTER_PORT) failed: {}",
                  server.text(), error.what());
  }
}

}  // namespace

void publish_in_torch_store(const base::Endpoint& server, const std::string& key,
                            const std::string& value, std::chrono::milliseconds timeout) {
  with_store(server, timeout, [&](c10d::TCPStore& store) {
    store.set(key, std::vector<uint8_t>(value.begin(), value.end()));
  });
}

std::string read_from_torch_store(const base::Endpoint& server, const std::string& key,
                                  std::chrono::milliseconds timeout) {
  return with_store(server, timeout, [&](c10d::TCPStore& store) {
    const std::vector<uint8_t> value = store.get(key);
    return std::string(value.begin(), value.end());
  });
}

}  // namespace lockstep::comm
