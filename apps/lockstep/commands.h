#pragma once

// The sub-commands: each takes what stands after its name and returns the exit code. They throw
// UsageError (main says it and exits 2) and other Errors (exit 1).

#include <string>
#include <vector>

namespace lockstep::app {

using Arguments = std::vector<std::string>;

int run(const Arguments& arguments);
int train(const Arguments& arguments);
int eval(const Arguments& arguments);
int explain(const Arguments& arguments);
int bench(const Arguments& arguments);
int bench_checkpoint(const Arguments& arguments);  // what stands after `bench checkpoint`
int bench_data(const Arguments& arguments);
int bench_ddp(const Arguments& arguments);
int bench_gpu(const Arguments& arguments);
int bench_gpu_parity(const Arguments& arguments);
int bench_launch(const Arguments& arguments);
int bench_load(const Arguments& arguments);
int bench_tokenize(const Arguments& arguments);
int image(const Arguments& arguments);
int inspect(const Arguments& arguments);
int doctor(const Arguments& arguments);
int version();

}  // namespace lockstep::app
