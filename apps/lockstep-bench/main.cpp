// lockstep-bench: one rank of `lockstep bench`. What is measured is in apps/bench/<topic>.

#include "bench/allreduce/bench_command.h"
#include "rank_program.h"

namespace {

constexpr lockstep::app::RankCommand kCommands[] = {{"bench", lockstep::bench_command}};

}  // namespace

int main(int argc, char** argv) {
  return lockstep::app::run_rank_program("lockstep-bench", kCommands, argc, argv);
}
