#!/usr/bin/env python3
"""How much would the tests notice? Makes small mistakes in areas of src/, one at a time, and runs the areas' tests.

    tools/mutants.py --areas comm,shm --count 80 --seed 1            make them, run the tests, write the report
    tools/mutants.py --areas comm,shm --count 80 --seed 1 --list     only say which mistakes those are
    tools/mutants.py ... --resume                                    go on where the last call was stopped

The mistakes are those of tools/tree/mutations.py in the commit HEAD; the same areas, count, seed and commit give the
same. They are made in a worktree of their own (build/mutants/tree, removed at the end), never in yours. A mistake is
killed if a test fails or takes three times as long as it should, survives if all pass, or does not compile. Tests of
an area are those with a source in tests/<area>; --tests comm='comm_unit_test|comm_test' says otherwise.

Results go to build/mutants/mutants.json after each mistake, and at the end as Markdown to --report. Tests run in a
PID namespace where that can be had: a mistake may call kill(). Exit code 0 whatever survives; 1 if it could not be
tried.
"""
import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from check_tree import NO_TORCH
from tree import mutations

ROOT = Path(__file__).resolve().parent.parent
CPP = {".h", ".cpp"}
LEAST_LIMIT_S = 10
BUILD_LIMIT_S = 1800
RESULTS = ("killed", "survived", "does not compile")


class Failure(Exception):
    """It cannot be tried; the text says why."""


class Bench:
    """A worktree in which mistakes are made, built and tested; gone with the `with` block."""

    def __init__(self, root, folder, preset, jobs):
        self.root, self.tree, self.preset, self.jobs = Path(root), Path(folder) / "tree", preset, jobs
        self.build = self.tree / "build" / preset
        self.prefix = _namespace()

    def __enter__(self):
        self._remove()  # what a killed run left
        self.tree.parent.mkdir(parents=True, exist_ok=True)
        _git(self.root, "worktree", "add", "--quiet", "--detach", str(self.tree), "HEAD")
        return self

    def __exit__(self, *_):
        self._remove()

    def _remove(self):
        subprocess.run(["git", "-C", self.root, "worktree", "remove", "--force", self.tree], stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(self.tree, ignore_errors=True)
        _git(self.root, "worktree", "prune")

    def configure(self):
        command = ["cmake", "--preset", self.preset, "-DLOCKSTEP_WERROR=OFF"]
        torch = self.root / ".setup" / "torch"
        if self.preset == "release":
            if not torch.is_file():
                raise Failure(".setup/torch is not there: call make setup first")
            command.append(f"-DLOCKSTEP_TORCH={torch.read_text().strip()}")
        code, text = self._run(command, BUILD_LIMIT_S)
        if code != 0:
            raise Failure(f"{' '.join(command)} failed:\n{text[-2000:]}")

    def tests_of(self, area):
        """The test binaries that have a source in the area's folder of tests/."""
        found = []
        for line in (self.build / "targets.txt").read_text().splitlines():
            kind, name, _, sources = line.split("|") if line else ("", "", "", "")
            if kind == "test" and name not in found and f"tests/{area}/" in sources:
                found.append(name)
        built = {line.split("|")[1] for line in (self.build / "tests.txt").read_text().splitlines()
                 if line and not line.startswith("absent|")}
        return [name for name in found if name in built]

    def compile(self, targets):
        """None, or what the compiler said."""
        code, text = self._run(["cmake", "--build", self.build, "-j", str(self.jobs), "--target", *targets],
                               BUILD_LIMIT_S)
        return None if code == 0 else text

    def test(self, name, limit_s):
        """(whether it passed, seconds)."""
        begin = time.monotonic()
        code, text = self._run([*self.prefix, "ctest", "--test-dir", str(self.build), "-R", f"^{re.escape(name)}$",
                                "--timeout", str(int(limit_s)), "--no-tests=error"], limit_s + 30)
        if "No tests were found" in text:
            raise Failure(f"ctest knows no test {name}")
        return code == 0, time.monotonic() - begin

    def _run(self, command, limit_s):
        """(exit code, output); all that it started ends with it."""
        folder = tempfile.mkdtemp(prefix="mutants-")  # short: sockets are made there
        with subprocess.Popen([str(x) for x in command], cwd=self.tree, stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace",
                              env={**os.environ, "TMPDIR": folder}, start_new_session=True) as process:
            try:
                text, _ = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                text, _ = process.communicate()
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return process.returncode, text


def _namespace():
    """The command in front of tests: what they start ends with them and cannot signal anything else."""
    # A shell at its head: it reaps what tests orphan.
    prefix = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", '"$@"; exit $?', "sh"]
    try:
        subprocess.run([*prefix, "true"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return prefix
    except (OSError, subprocess.CalledProcessError):
        print("mutants: no PID namespace can be had here; tests run without", file=sys.stderr)
        return []


def _git(root, *arguments):
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failure(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def texts_of(root, areas):
    """{area: {file: text}} of the C++ in src/<area>, as HEAD has it."""
    found = {}
    for area in areas:
        files = [x for x in _git(root, "ls-tree", "-r", "--name-only", "HEAD", f"src/{area}/").splitlines()
                 if Path(x).suffix in CPP]
        if not files:
            raise Failure(f"there is no C++ in src/{area} of HEAD")
        found[area] = {file: _git(root, "show", f"HEAD:{file}") for file in files}
    return found


def try_all(bench, drawn, record, tests):
    """Fills record["mutants"], each as soon as it is known; record is saved by its owner after each."""
    bench.configure()
    areas = sorted({area for area, _ in drawn})
    names = {area: tests.get(area) or bench.tests_of(area) for area in areas}
    for area in areas:
        if not names[area]:
            raise Failure(f"no test has a source in tests/{area}; name some with --tests {area}=...")
    every = sorted({name for area in areas for name in names[area]})
    print(f"mutants: building {', '.join(every)}", flush=True)
    if (said := bench.compile(every)) is not None:
        raise Failure(f"HEAD does not compile:\n{said[-2000:]}")
    took = {}
    for name in every:
        passed, took[name] = bench.test(name, 3600)
        if not passed:
            raise Failure(f"{name} fails without a mistake")
        print(f"mutants: {name} takes {took[name]:.1f} s", flush=True)
    for number, (area, mutant) in enumerate(drawn[len(record["mutants"]):], len(record["mutants"]) + 1):
        begin = time.monotonic()
        result, by = try_one(bench, mutant, sorted(names[area], key=took.get), took)
        record["mutants"].append({**mutant.as_dict(), "area": area, "result": result, "by": by,
                                  "seconds": round(time.monotonic() - begin, 1)})
        print(f"mutants: {number}/{len(drawn)} {mutant.file}:{mutant.line} {mutant.operator}: {result}"
              + (f" by {by}" if by else ""), flush=True)
        yield record


def try_one(bench, mutant, names, took):
    """(result, the test that killed it)."""
    path = bench.tree / mutant.file
    original = path.read_bytes()
    path.write_text(mutant.apply(original.decode()), encoding="utf-8")
    try:
        if bench.compile(names) is not None:
            return "does not compile", None
        for name in names:
            if not bench.test(name, max(LEAST_LIMIT_S, 3 * took[name]))[0]:
                return "killed", name
        return "survived", None
    finally:
        path.write_bytes(original)


def report(record):
    """The results as Markdown."""
    mutants = record["mutants"]
    yield "# Mutants"
    yield ""
    yield f"What `tools/mutants.py --areas {','.join(record['areas'])} --count {record['count']} --seed " \
          f"{record['seed']}` found in commit"
    yield f"{record['commit'][:10]}: small mistakes made one at a time, and whether the area's tests noticed."
    yield ""
    yield "| area | tried | killed | survived | did not compile | noticed |"
    yield "|---|---|---|---|---|---|"
    for area in [*sorted({x["area"] for x in mutants}), "all"]:
        of_area = [x for x in mutants if area in (x["area"], "all")]
        killed, survived, broken = (sum(x["result"] == result for x in of_area) for result in RESULTS)
        noticed = f"{100 * killed // (killed + survived)} %" if killed + survived else "-"
        yield f"| {area} | {len(of_area)} | {killed} | {survived} | {broken} | {noticed} |"
    yield ""
    yield "## Survivors"
    survivors = sorted((x for x in mutants if x["result"] == "survived"), key=lambda x: (x["file"], x["line"]))
    for mutant in survivors:
        before, after = (" ".join(mutant[side].split()).replace("`", "'") for side in ("before", "after"))
        yield f"- `{mutant['file']}:{mutant['line']}` {mutant['operator']}:"
        yield f"  `{before}`" + (f" for `{after}`" if after.strip(";") else " dropped")
    if not survivors:
        yield "None."


def load(path, wanted, resume):
    """The record to go on with: the file's if that is wanted and it is of the same draw, else an empty one."""
    if resume and path.is_file():
        record = json.loads(path.read_text())
        differ = [key for key, value in wanted.items() if record.get(key) != value]
        if differ:
            raise Failure(f"{path} is of another {', '.join(differ)}; call without --resume")
        return record
    return {**wanted, "mutants": []}


def save(path, record):
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(record, indent=1) + "\n")
    beside.replace(path)


def run(arguments):
    root, folder = Path(arguments.root), Path(arguments.root) / "build" / "mutants"
    areas = sorted(set(arguments.areas.split(",")))
    drawn = mutations.draw(texts_of(root, areas), arguments.count, arguments.seed)
    if arguments.list:
        for area, mutant in drawn:
            print(f"{mutant.file}:{mutant.line}: {mutant.operator}: {mutant.before!r} -> {mutant.after!r}")
        return
    wanted = {"areas": areas, "count": arguments.count, "seed": arguments.seed,
              "commit": _git(root, "rev-parse", "HEAD").strip()}
    record = load(folder / "mutants.json", wanted, arguments.resume)
    tests = {}
    for given in arguments.tests:
        area, equals, names = given.partition("=")
        if not equals or area not in areas:
            raise Failure(f"--tests {given}: not AREA=TEST|TEST of one of {', '.join(areas)}")
        tests[area] = names.split("|")
    preset = arguments.preset or ("core" if set(areas) <= NO_TORCH else "release")
    if len(record["mutants"]) < len(drawn):
        with Bench(root, folder, preset, arguments.jobs) as bench:
            for current in try_all(bench, drawn, record, tests):
                save(folder / "mutants.json", current)
    path = Path(arguments.report or folder / "report.md")
    path.write_text("\n".join(report(record)) + "\n")
    counts = ", ".join(f"{sum(x['result'] == result for x in record['mutants'])} {result}" for result in RESULTS)
    print(f"mutants: {counts}; {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--areas", required=True, help="folders of src/, with commas between them")
    parser.add_argument("--count", type=int, default=80)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests", action="append", default=[], metavar="AREA=TEST|TEST", help="CTests instead of an "
                        "area's own")
    parser.add_argument("--preset", help="of CMake; core if no area needs libtorch, else release")
    parser.add_argument("--jobs", type=int, default=1, help="compilers at once")
    parser.add_argument("--report", help="where the Markdown goes; build/mutants/report.md if not given")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--root", default=ROOT, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))  # leaves the `with` block
    try:
        run(arguments)
    except Failure as failure:
        sys.exit(f"mutants: {failure}")
    except KeyboardInterrupt:
        sys.exit("mutants: stopped; --resume goes on")


if __name__ == "__main__":
    main()
