#include "commands.h"
#include "sibling_program.h"

namespace lockstep::app {

// One process, a group of one; `lockstep run … lockstep train …` makes it many.
int train(const Arguments& arguments) {
  return exec_sibling("lockstep-torch", "train", arguments);
}

int eval(const Arguments& arguments) {
  return exec_sibling("lockstep-torch", "eval", arguments);
}

}  // namespace lockstep::app
