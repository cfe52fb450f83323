// lockstep-torch: the sub-commands that train, evaluate and generate, and what doctor asks for.

#include "eval_command.h"
#include "rank_program.h"
#include "train_command.h"
#include "version_command.h"

namespace {

constexpr lockstep::app::RankCommand kCommands[] = {
    {"eval", lockstep::eval_command},
    {"train", lockstep::train_command},
    {"--version", lockstep::version_command},
};

}  // namespace

int main(int argc, char** argv) {
  return lockstep::app::run_rank_program("lockstep-torch", kCommands, argc, argv);
}
