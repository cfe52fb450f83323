#pragma once

namespace lockstep {

// `lockstep-torch bench PLAN` and `bench ddp PLAN`: one rank of `lockstep bench`. Returns the exit
// code.
int bench_command(int argc, char** argv);

}  // namespace lockstep
