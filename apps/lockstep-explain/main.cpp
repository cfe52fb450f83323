// lockstep-explain: one rank of `lockstep explain`. The lessons are in src/explain.

#include <cstdlib>

#include "explain_command.h"
#include "rank_program.h"

namespace {

constexpr lockstep::app::RankCommand kCommands[] = {{"explain", lockstep::explain_command}};

}  // namespace

int main(int argc, char** argv) {
  // Lessons are told on the CPU: where there is a GPU, nothing of CUDA is loaded for them.
  setenv("LOCKSTEP_DEVICE", "cpu", 1);
  return lockstep::app::run_rank_program("lockstep-explain", kCommands, argc, argv);
}
