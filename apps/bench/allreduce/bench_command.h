#pragma once

namespace lockstep {

// `lockstep-torch bench PLAN`, `bench ddp PLAN` and `bench launch`: one rank of `lockstep bench`.
// Returns the exit code.
int bench_command(int argc, char** argv);

}  // namespace lockstep
