#pragma once

// Datagrams between processes of one host, with descriptors in them.

#include <cstddef>
#include <vector>

#include "base/deadline.h"
#include "base/unique_fd.h"

namespace lockstep::shm {

inline constexpr size_t kMaxFdsPerMessage = 64;  // the kernel takes 253

// Waits until `fd` is ready for `events` (of poll); an error of it counts as ready. Throws
// TimeoutError at the deadline.
void wait_for(int fd, short events, base::Deadline deadline);

// Sends one datagram. The kernel limits the descriptors that all processes of a user have under way
// together (to RLIMIT_NOFILE): whoever meets the limit waits until others have taken theirs.
void send_message(int fd, const void* data, size_t bytes, const std::vector<int>& fds,
                  base::Deadline deadline);

// Receives exactly `bytes`, and the descriptors that came along: fewer than were sent if this
// process may not open as many. Throws IoError if the other end is gone or sends anything else.
std::vector<base::UniqueFd> receive_message(int fd, void* data, size_t bytes,
                                            base::Deadline deadline);

}  // namespace lockstep::shm
