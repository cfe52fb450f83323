#pragma once

// JSON messages between the processes of a test, over a socket that keeps messages apart
// (SOCK_SEQPACKET); a descriptor may come along.

#include <nlohmann/json.hpp>

#include "base/unique_fd.h"

namespace lockstep::testing_support {

struct JsonMessage {
  nlohmann::json json;  // null: the other end has hung up
  base::UniqueFd fd;    // if one came along
};

// Throws IoError if the other end has gone.
void send_json(int socket, const nlohmann::json& json, int fd = -1);
JsonMessage receive_json(int socket);

}  // namespace lockstep::testing_support
