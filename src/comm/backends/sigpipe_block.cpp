#include "comm/backends/sigpipe_block.h"

#include <time.h>

namespace lockstep::comm {
namespace {

sigset_t only_sigpipe() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

bool is_pending() {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, SIGPIPE) == 1;
}

}  // namespace

SigpipeBlock::SigpipeBlock() : was_pending_(is_pending()) {
  const sigset_t sigpipe = only_sigpipe();
  ::pthread_sigmask(SIG_BLOCK, &sigpipe, &mask_before_);
}

SigpipeBlock::~SigpipeBlock() {
  if (!was_pending_ && is_pending()) {
    const sigset_t sigpipe = only_sigpipe();
    const timespec at_once{};
    ::sigtimedwait(&sigpipe, nullptr, &at_once);
  }
  ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

}  // namespace lockstep::comm
