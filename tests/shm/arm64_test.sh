#!/bin/sh
# The area compiles for arm64: no x86 instruction has slipped into what is not marked as x86's.
# arm64_test.sh SOURCE_DIR; exit code 77: there is no cross compiler.
set -eu
cd "$1"
compiler=aarch64-linux-gnu-g++
if ! command -v "$compiler" > /dev/null; then
  echo "$compiler is not installed (apt-get install g++-aarch64-linux-gnu): not checked"
  case ",${LOCKSTEP_REQUIRE:-}," in
    *,arm64,*) echo "and LOCKSTEP_REQUIRE asks for it"; exit 1 ;;
  esac
  exit 77
fi
# The headers of fmt and spdlog are the same everywhere; the libc's must be the target's own.
flags="-std=c++20 -Wall -Wextra -Werror -Wno-missing-field-initializers -Iinclude -Isrc -idirafter /usr/include"
for source in src/shm/*.cpp; do
  case "$source" in
    */kernels_avx*) ;;
    *) "$compiler" $flags -fsyntax-only "$source" ;;
  esac
done
"$compiler" $flags -O1 -ffp-contract=off -c src/shm/kernels_baseline.cpp -o /dev/null
