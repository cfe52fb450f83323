#include <csignal>

#include "launch/job/leader.h"

namespace lockstep::launch {

void Leader::start_staging() {
  if (options_.stages.empty()) {
    return;
  }
  StageOptions options{.items = options_.stages, .container = options_.container};
  if (options_.container && options_.container->runtime == image::ContainerRuntime::Builtin) {
    options.program = options_.command.front();
  }
  stager_ = std::make_unique<Stager>(options);
}

void Leader::serve_stager() {
  const auto result = stager_->serve();
  if (!result) {
    return;
  }
  stager_.reset();
  if (is_over()) {
    if (result->code != 0 && result->code != 128 + SIGTERM) {
      say(result->text);
    }
    return;
  }
  if (result->code == 0) {
    say(result->text);
    tell({.kind = MemberSays::Staged});
  } else {
    stage_failure_ = {
        .kind = MemberSays::CannotStage, .status = {.code = result->code}, .text = result->text};
    tell(*stage_failure_);
  }
}

}  // namespace lockstep::launch
