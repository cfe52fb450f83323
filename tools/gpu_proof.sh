#!/bin/sh
# Runs on a GPU machine, in one call of at most nine minutes, what proves there that lockstep is right: every test
# with the label `cuda`, compute-sanitizer on the kernels, and the benches.
#
#   tools/gpu_proof.sh PACK OUT                     PACK: the folder made by tools/gpu_pack.sh; OUT: for the results
#   tools/gpu_proof.sh PACK OUT --only tests        or sanitizer, or bench; several with commas
#   tools/gpu_proof.sh PACK OUT --filter 'ddp_*'    only the programs with such names
#   tools/gpu_proof.sh PACK OUT --gtest-filter '*Join*'   only such cases of the tests
#   tools/gpu_proof.sh PACK OUT --seconds 300 --each 60   less time for all, and for each program
#
# It writes OUT/summary.json (per program: passed, failed, skipped, seconds, and what failed with its messages) and
# OUT/log.txt (all that was printed). It needs python3 with torch, and CUDA's compute-sanitizer; it changes no clock,
# no limit of power, and no other setting of the GPU.
#
# Exit code: 0; 1 if anything failed, was skipped (but for what needs two GPUs), or did not run for want of time;
# 2 for a mistake on this line.
exec python3 -B "$(dirname "$0")/gpu_proof.py" "$@"
