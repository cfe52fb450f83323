#!/usr/bin/env python3
"""Start to exit of ranks that do nothing, `lockstep run` beside torchrun, interleaved.

    bench/start.py [--torchrun torchrun] [--ranks 8] [--repeats 11]

torchrun comes from PyTorch 2.11 (`pip install torch==2.11.0`, in an environment of its own). Both start
/bin/true; times are wall clock from command to exit, medians; raw times with --json.
"""
import argparse
import json
import statistics
import subprocess
import time


def seconds(command):
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lockstep", default="build/release/bin/lockstep")
    parser.add_argument("--torchrun", default="torchrun")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ranks = str(options.ranks)
    ours = [options.lockstep, "run", "--nproc-per-node", ranks, "/bin/true"]
    peer = [options.torchrun, "--standalone", "--nproc-per-node", ranks, "--no-python", "/bin/true"]
    seconds(ours), seconds(peer)  # warm the file cache
    times = [(seconds(ours), seconds(peer)) for _ in range(options.repeats)]
    result = {
        "ranks": options.ranks,
        "repeats": options.repeats,
        "lockstep_s": statistics.median(t[0] for t in times),
        "peer_s": statistics.median(t[1] for t in times),
    }
    result["speedup"] = result["peer_s"] / result["lockstep_s"]
    if options.json:
        print(json.dumps({**result, "raw_s": times}))
    else:
        print(f"{options.ranks} ranks, median of {options.repeats}: lockstep {result['lockstep_s'] * 1e3:.0f} ms, "
              f"torchrun {result['peer_s']:.2f} s, {result['speedup']:.0f} times faster")


if __name__ == "__main__":
    main()
