#pragma once

// torchrun's own store, used for one thing: to learn where rank 0 hosts ours.

#include <chrono>
#include <string>

#include "base/socket.h"

namespace lockstep::comm {

// Sets (rank 0) or waits for (the others) a text in the c10d store that torchrun's agent hosts at
// `server`. Throws IoError or TimeoutError.
void publish_in_torch_store(const base::Endpoint& server, const std::string& key,
                            const std::string& value, std::chrono::milliseconds timeout);
std::string read_from_torch_store(const base::Endpoint& server, const std::string& key,
                                  std::chrono::milliseconds timeout);

}  // namespace lockstep::comm
