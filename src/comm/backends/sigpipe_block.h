#pragma once

// Gloo writes to its sockets without MSG_NOSIGNAL: a write to a rank that has died is a SIGPIPE,
// which ends a process that does not ignore it before it learns of the death.

#include <signal.h>

namespace lockstep::comm {

// Blocks SIGPIPE in the calling thread, and in the threads started meanwhile for as long as they
// live. The end takes back what was blocked and drops a SIGPIPE that came in between.
class SigpipeBlock {
 public:
  SigpipeBlock();
  ~SigpipeBlock();
  SigpipeBlock(const SigpipeBlock&) = delete;
  SigpipeBlock& operator=(const SigpipeBlock&) = delete;

 private:
  sigset_t mask_before_;
  bool was_pending_;
};

}  // namespace lockstep::comm
