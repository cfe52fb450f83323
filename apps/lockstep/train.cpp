#include "commands.h"
#include "torch_program.h"

namespace lockstep::app {

// One process, a group of one; `lockstep run … lockstep train …` makes it many.
int train(const Arguments& arguments) {
  return exec_torch_program("train", arguments);
}

int eval(const Arguments& arguments) {
  return exec_torch_program("eval", arguments);
}

}  // namespace lockstep::app
