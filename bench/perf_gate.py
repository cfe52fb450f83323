#!/usr/bin/env python3
"""A coarse gate for the figures that README.md and docs/ publish: `make perf`.

    bench/perf_gate.py build/release/bin/lockstep

Runs `lockstep bench` for each of them and compares ratios, which say more than times about another machine. A ratio
passes if it reaches a third of the published one in one of three tries: that catches what was broken, not what became
a little slower. Figures whose peer is not on this machine are listed as skipped, and so are those that need more cores.
Exit code: 0; 1 if a figure stays below its limit or a benchmark fails; 2 for a mistake on this line.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field

TRIES = 3
SHARE = 1 / 3  # of the published ratio
PATIENCE_S = 120  # of one benchmark


@dataclass
class Figure:
    """A ratio, the larger the better, out of the JSON that a benchmark prints."""
    name: str
    published: float
    place: str  # who publishes it
    ratio: object  # takes the JSON; None: its peer is not here
    best: float = None

    def passes(self):
        return self.best is not None and self.best >= SHARE * self.published


@dataclass
class Benchmark:
    arguments: list
    figures: list
    min_cores: int = 1
    skipped: str = ""
    tries: int = 0
    failures: list = field(default_factory=list)


def of_size(size, name):
    """A field of the result for this size; none if nobody but Gloo was there to be compared with."""
    def ratio(answer):
        result = next(each for each in answer["results"] if each["bytes"] == size)
        return None if name.endswith("over_best") and set(result["peers"]) == {"gloo"} else result.get(name)
    return ratio


def inverse(name):
    return lambda answer: 1 / answer[name]


def field_of(name):
    return lambda answer: answer[name]


KIB, MIB = 1 << 10, 1 << 20
MPI = "docs/decisions/0010"
BENCHMARKS = [
    Benchmark(["ddp", "--model", "mlp", "--ranks", "4", "--steps", "30"], [
        Figure("training step, beside c10d", 3.2 / 1.15, "README.md", field_of("speedup")),
        Figure("training step, bare / lockstep", 1 / 1.15, "README.md", inverse("overhead"))]),
    Benchmark(["allreduce", "--ranks", "8", "--bytes", "25M", "--peer", "gloo", "--repeats", "1"], [
        Figure("25 MiB on 8 ranks in place, beside Gloo", 22 / 2.9, "README.md", of_size(25 * MIB, "speedup")),
        Figure("25 MiB on 8 ranks, beside Gloo", 22 / 7.4, "README.md", of_size(25 * MIB, "staged_speedup"))],
              min_cores=8),
    Benchmark(["allreduce", "--ranks", "8", "--bytes", "25M", "--peer", "gloo,openmpi,mpich,intelmpi", "--repeats", "1"], [
        Figure("25 MiB on 8 ranks in place, beside MPI", 11.8 / 2.9, "README.md", of_size(25 * MIB, "speedup_over_best")),
        Figure("25 MiB on 8 ranks, beside MPI", 11.8 / 7.4, "README.md", of_size(25 * MIB, "staged_speedup_over_best"))],
              min_cores=8),
    Benchmark(["allreduce", "--ranks", "2", "--bytes", "4K,1M,25M", "--peer", "gloo,openmpi,mpich,intelmpi", "--repeats", "1"], [
        Figure("4 KiB on 2 ranks in place, beside MPI", 1.07, MPI, of_size(4 * KIB, "speedup_over_best")),
        Figure("1 MiB on 2 ranks in place, beside MPI", 4.0, MPI, of_size(MIB, "speedup_over_best")),
        Figure("1 MiB on 2 ranks, beside MPI", 1.4, MPI, of_size(MIB, "staged_speedup_over_best")),
        Figure("25 MiB on 2 ranks in place, beside MPI", 3.9, MPI, of_size(25 * MIB, "speedup_over_best")),
        Figure("25 MiB on 2 ranks, beside MPI", 1.8, MPI, of_size(25 * MIB, "staged_speedup_over_best"))],
              min_cores=2),
    Benchmark(["launch", "--ranks", "8", "--repeats", "1"], [
        Figure("a short job, beside torchrun", 3.7 / 1.6, "README.md", field_of("speedup_same_binary")),
        Figure("a short job, beside Python under torchrun", 16.7 / 1.6, "README.md", field_of("speedup"))]),
]


def run_once(lockstep, benchmark):
    """Takes the better ratio of each figure. Sets `skipped` where nothing can be compared on this machine."""
    command = [lockstep, "bench", *benchmark.arguments, "--json"]
    benchmark.tries += 1
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        benchmark.failures.append(f"it took more than {PATIENCE_S} s")
        return
    if done.returncode != 0:
        benchmark.failures.append(f"exit code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
        return
    answer = json.loads(done.stdout)
    for figure in benchmark.figures:
        ratio = figure.ratio(answer)
        if ratio is None:
            benchmark.skipped = "its peer is not here"
        else:
            figure.best = max(ratio, figure.best or 0)


def lacks(benchmark, cores):
    """Why it cannot be measured here; empty if it can."""
    if benchmark.min_cores > cores:
        return f"needs {benchmark.min_cores} cores, here are {cores}"
    if benchmark.arguments[0] == "launch" and not any(
            os.access(os.path.join(folder, "torchrun"), os.X_OK) for folder in os.get_exec_path()):
        return "there is no torchrun in PATH"
    return ""


def measure(lockstep, benchmark):
    while benchmark.tries < TRIES and not benchmark.skipped and not all(f.passes() for f in benchmark.figures):
        run_once(lockstep, benchmark)


def row(figure, benchmark):
    published, limit = f"{figure.published:.2f}", f"{SHARE * figure.published:.2f}"
    if benchmark.skipped:
        measured, verdict = "-", f"skipped: {benchmark.skipped}"
    else:
        measured = "-" if figure.best is None else f"{figure.best:.2f}"
        verdict = "ok" if figure.passes() else f"TOO SLOW in {benchmark.tries} tries"
        if not figure.passes() and benchmark.failures:
            verdict = f"FAILED: {benchmark.failures[-1]}"
    return f"{figure.name:<44} {published:>9} {limit:>7} {measured:>9}  {verdict}  ({figure.place})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep", help="the program to measure")
    arguments = parser.parse_args()
    if not os.access(arguments.lockstep, os.X_OK):
        parser.error(f"{arguments.lockstep} is no program; build it by `make build`")
    cores = len(os.sched_getaffinity(0))
    print(f"{'ratio':<44} {'published':>9} {'limit':>7} {'measured':>9}", flush=True)
    is_good = True
    for benchmark in BENCHMARKS:
        benchmark.skipped = lacks(benchmark, cores)
        measure(arguments.lockstep, benchmark)
        for figure in benchmark.figures:
            is_good = is_good and (bool(benchmark.skipped) or figure.passes())
            print(row(figure, benchmark), flush=True)
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
