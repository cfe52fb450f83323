#pragma once

namespace lockstep {

// Runs one rank of `lockstep bench`, as `lockstep-bench bench PLAN`, `bench ddp PLAN` and so on.
// Returns the exit code.
int bench_command(int argc, char** argv);

}  // namespace lockstep
