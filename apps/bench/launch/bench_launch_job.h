#pragma once

namespace lockstep {

// One rank of the short job of `lockstep bench launch`, started by `lockstep run` or by torchrun:
// bench/ddp_job.py in C++. Returns the exit code.
int bench_launch_job();

}  // namespace lockstep
