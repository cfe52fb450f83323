#include "weights/together.h"

#include "comm/agree.h"

namespace lockstep::weights {

void run_together(Group& group, const std::function<void()>& body) {
  comm::throw_together(group, comm::caught(body));
}

}  // namespace lockstep::weights
