#pragma once

namespace lockstep {

// `lockstep eval CHECKPOINT`: what a trained model is worth, says or knows.
int eval_command(int argc, char** argv);

}  // namespace lockstep
