#!/usr/bin/env python3
"""Measures on a machine with a GPU how much later programs start for it that leave the GPU alone.

    build/gpu-pack/bench/gpu_start.py --lockstep "build/gpu-pack/run lockstep"

Each command line runs by turns in the folder that tools/gpu_pack.sh made and in a copy of it that has neither the
plug-in nor libtorch's CUDA libraries, as on a machine without a GPU. First of all a program must find the GPU in the
one and not in the other: else there is nothing to compare. Prints one line of JSON:

    cases[]   program; later_ms, the median of the differences between a run and the one beside it in the copy;
              with_ms and without_ms, the medians of both; rounds

Exit code: 0; 1 if one is more than --limit later, or a program failed.
"""
import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from importlib import util
from pathlib import Path

LIMIT_MS = 20
ROUNDS = (9, 31)  # at least and at most
CUDA_LIBRARIES = ("libtorch_cuda", "libc10_cuda", "libtorch_nvshmem", "libcaffe2_nvrtc")
PLUGIN = "liblockstep_cuda.so"
TINY = ["--set", "train.epochs=1", "--set", "data.num_pictures=8", "--set", "data.held_out_pictures=8",
        "--set", "train.batch_size=8"]
ASK_FOR_GPU = ["bench", "gpu-parity", "--ranks", "1", "--models", "mlp", "--steps", "1", "--json"]


@dataclass
class Case:
    program: str
    arguments: list
    env: dict = field(default_factory=dict)


def make_cases(pack, checkpoint, device_setting):
    """What uses no GPU; `device_setting`: whether recipes know train.device."""
    recipe = str(pack / "recipes" / "cats.toml")
    on_cpu = {"LOCKSTEP_DEVICE": "cpu"}
    cases = [Case(x, x.split()) for x in ("--help", "--version", "run --help", "inspect --help", "doctor --help",
                                          "train --help", "eval --help", "explain --help", "bench --help")]
    cases += [Case("run true", ["run", "--nproc-per-node", "1", "--", "true"]),
              Case("inspect", ["inspect", str(checkpoint)]),
              Case("explain average", ["explain", "average"]),
              Case("bench allreduce", ["bench", "allreduce", "--ranks", "2", "--bytes", "4K", "--repeats", "1", "--peer",
                                       "none"]),
              Case("train, LOCKSTEP_DEVICE=cpu", ["train", recipe, *TINY], on_cpu),
              Case("eval, LOCKSTEP_DEVICE=cpu", ["eval", str(checkpoint)], on_cpu)]
    if device_setting:
        cases.append(Case("train, train.device=cpu", ["train", recipe, *TINY, "--set", "train.device=cpu"]))
    return cases


class Installation:
    """A pack, and the libtorch that its programs are to use."""

    def __init__(self, pack, torch):
        self.pack = pack
        self.env = {**os.environ, "LOCKSTEP_TORCH": str(torch)}
        for name in ("LOCKSTEP_DEVICE", "LOCKSTEP_CUDA_PLUGIN"):
            self.env.pop(name, None)

    def run(self, arguments, env=None):
        """(seconds, what it printed); raises CalledProcessError."""
        begin = time.perf_counter()
        done = subprocess.run([str(self.pack / "run"), "lockstep", *arguments], env={**self.env, **(env or {})},
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True)
        return time.perf_counter() - begin, done.stdout.decode(errors="replace")

    def works(self, arguments):
        try:
            self.run(arguments)
        except subprocess.CalledProcessError:
            return False
        return True


def copy_without_cuda(original, folder):
    """The same programs without the plug-in, and the same libtorch without its CUDA libraries."""
    pack, torch = folder / "pack", folder / "torch"
    shutil.copytree(original.pack, pack, ignore=shutil.ignore_patterns(PLUGIN))
    whole = Path(original.env["LOCKSTEP_TORCH"])
    (torch / "lib").mkdir(parents=True)
    for library in (whole / "lib").iterdir():
        if not library.name.startswith(CUDA_LIBRARIES):
            (torch / "lib" / library.name).symlink_to(library)
    if (whole.parent / "nvidia").exists():  # libtorch looks for its libraries beside its own folder
        (folder / "nvidia").symlink_to(whole.parent / "nvidia")
    return Installation(pack, torch)


def measure(case, whole, copy, seconds, limit):
    first = whole.run(case.arguments, case.env)[0] + copy.run(case.arguments, case.env)[0]  # these warm the caches
    least, most = ROUNDS
    rounds = max(least, min(most, int(seconds / first)))
    times = {whole: [], copy: []}
    for target in (rounds, 3 * rounds):  # what looks late is measured longer; all rounds count
        while len(times[copy]) < target:
            for one in (whole, copy) if len(times[copy]) % 2 else (copy, whole):
                times[one].append(one.run(case.arguments, case.env)[0] * 1e3)
        later = statistics.median(a - b for a, b in zip(times[whole], times[copy]))
        if later <= limit:
            break
    return {"program": case.program, "later_ms": round(later, 2),
            "with_ms": round(statistics.median(times[whole]), 2),
            "without_ms": round(statistics.median(times[copy]), 2), "rounds": len(times[copy])}


def find_torch():
    if folder := os.environ.get("LOCKSTEP_TORCH"):
        return Path(folder)
    found = util.find_spec("torch")
    if not found:
        sys.exit("gpu_start: python3 has no torch; set LOCKSTEP_TORCH to the folder of a libtorch with CUDA")
    return Path(found.submodule_search_locations[0])


def compare(options, folder):
    pack = Path(shlex.split(options.lockstep)[0]).resolve().parent
    if not (pack / "pack.json").is_file():
        sys.exit(f"gpu_start: {pack} is no folder made by tools/gpu_pack.sh: it has no pack.json")
    whole = Installation(pack, find_torch())
    copy = copy_without_cuda(whole, folder)
    if not options.without_gpu and not whole.works(ASK_FOR_GPU):
        sys.exit("gpu_start: no GPU can be used here, so there is nothing to compare; bench gpu-parity says why")
    if copy.works(ASK_FOR_GPU):
        sys.exit("gpu_start: the copy without CUDA finds a GPU all the same; the comparison would be void")
    recipe = [str(pack / "recipes" / "cats.toml"), *TINY]
    checkpoint = folder / "checkpoint"
    copy.run(["train", *recipe, "--set", f"checkpoint.dir={checkpoint}"])
    knows_device = copy.works(["train", *recipe, "--set", "train.device=cpu"])
    cases = make_cases(pack, checkpoint, knows_device)
    return {"cases": [measure(case, whole, copy, options.seconds / len(cases), options.limit) for case in cases]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lockstep", required=True, help="the pack's `run` and the program")
    parser.add_argument("--seconds", type=float, default=60, help="for all, about (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=LIMIT_MS, help="in milliseconds (default: %(default)s)")
    parser.add_argument("--without-gpu", action="store_true", help="go on without a GPU: it shows that this works")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lockstep-start-") as folder:
        try:
            result = compare(options, Path(folder))
        except subprocess.CalledProcessError as error:
            sys.exit(f"gpu_start: {shlex.join(error.cmd)} failed with {error.returncode}:\n"
                     f"{error.stdout.decode(errors='replace')[-4000:]}")
    print(json.dumps(result))
    return 0 if all(x["later_ms"] <= options.limit for x in result["cases"]) else 1


if __name__ == "__main__":
    sys.exit(main())
