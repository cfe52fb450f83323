#!/usr/bin/env python3
"""How much would the tests notice? Makes small mistakes in areas of src/, and runs the areas' tests on each.

    tools/mutants.py --areas comm,shm --count 80 --seed 1            make them, run the tests, write the report
    tools/mutants.py --areas comm,shm --count 80 --seed 1 --list     only say which mistakes those are
    tools/mutants.py ... --only comm                                 some of the areas; --resume tries the others
    tools/mutants.py ... --resume                                    go on where the last call was stopped
    tools/mutants.py ... --again                                     only survivors, on the tests that HEAD has by now

The mistakes are those of tools/tree/mutations.py in the commit HEAD; the same areas, count, seed and commit give the
same. One build, in a worktree of its own (build/mutants/tree, removed at the end unless --keep), has all of them: the
environment variable LOCKSTEP_MUTANT=7 makes a process make the seventh. So none are drawn outside of functions'
bodies, and in constexpr functions. One is killed if a test fails or takes three times as long as it should, survives
if all pass, or does not compile. A test that fails is run again with the mistake and without: under load, tests may
fail by themselves.

An area comm has the sources src/comm and the tests with a source in tests/comm; a+b is area a with the folders of
both. --tests comm='comm_unit_test|comm_test' names other CTests; --without leaves out those with one of the labels.

Results go to build/mutants/mutants.json after each mistake, and at the end as Markdown to --report. What is written
there under a survivor, indented, is kept: why no test can see it. Tests run in a PID namespace where that can be had:
a mistake may call kill(). Exit code 0 whatever survives; 1 if it could not be tried.
"""
import argparse
import json
import re
import signal
import sys
import threading
import time
from pathlib import Path

from check_tree import NO_TORCH
from tree import area_tests, mutations
from tree.area_tests import Failure
from tree.mutant_build import MutantBuild, git

ROOT = Path(__file__).resolve().parent.parent
CPP = {".h", ".cpp"}
MOST_SHOWN = 50  # letters of a text in the report
RESULTS = ("killed", "survived", "does not compile")


def texts_of(root, areas):
    """{area: {file: text}} of the C++ of each area's folders of src/, as HEAD has it."""
    found = {}
    for area, folders in areas.items():
        files = [x for folder in folders for x in git(root, "ls-tree", "-r", "--name-only", "HEAD",
                                                      f"src/{folder}/").splitlines() if Path(x).suffix in CPP]
        if not files:
            raise Failure(f"there is no C++ in src/{area} of HEAD")
        found[area] = {file: git(root, "show", f"HEAD:{file}") for file in files}
    return found


def try_some(build, runner, record, wanted, options, save):
    """Fills in the results of those of the record's mutants that are `wanted`; save() after each."""
    build.configure()
    areas = {x["area"]: options.areas[x["area"]] for x in wanted}
    binaries = {area: area_tests.binaries_of(build.build, folders, options.without)
                for area, folders in areas.items()}
    for area, some in binaries.items():
        if not some:
            raise Failure(f"no test has a source in tests/{area}; name its folder: --areas {area}+FOLDER")
    every = sorted({x for some in binaries.values() for x in some})
    print(f"mutants: building {', '.join(every)}", flush=True)
    mutants = {x["number"]: mutations.Mutant(*(x[key] for key in mutations.Mutant.__dataclass_fields__))
               for x in record["mutants"] if x["result"] != "does not compile"}
    broken = build.compile(every, mutants)
    for mutant in record["mutants"]:
        if mutant["number"] in broken:
            mutant.update(result="does not compile", by=None)
    save()
    tests = {area: named(area_tests.tests_of(build.build, some, options.without), area, options.tests.get(area))
             for area, some in binaries.items()}

    lock = threading.Lock()
    measured = record.setdefault("measured", {})
    if options.again:  # there are other cases now
        measured.clear()

    def measure(test):
        if test.name not in measured:
            runner.measure(test)
            with lock:
                measured[test.name] = {"seconds": round(test.seconds, 1), "left_out": test.left_out,
                                       "cases": [[x.name, x.file, x.seconds] for x in test.cases]}
                save()
        known = measured[test.name]
        test.seconds, test.left_out = known["seconds"], known["left_out"]
        test.cases = [area_tests.Case(*x) for x in known["cases"]]
        print(f"mutants: {test.name}: {len(test.cases)} cases in {test.seconds} s"
              + (f"; without a mistake, too, fail {', '.join(test.left_out)}" if test.left_out else ""), flush=True)

    def try_it(mutant):
        begin = time.monotonic()
        area = mutant["area"]
        usable = [x for x in tests[area] if x.cases]
        if not usable:
            raise Failure(f"no case of {area}'s tests passes without a mistake")
        by = killer(runner, mutant["number"], mutant["file"], usable)
        with lock:
            if mutant["result"] == "survived" and by:
                mutant["survived"] = record["commit"]
            mutant.update(result="killed" if by else "survived", by=by, seconds=round(time.monotonic() - begin, 1))
            record.setdefault("tests", {})[area] = {x.name: x.left_out for x in usable}
            save()
        print(f"mutants: {mutant['number']} {mutant['file']}:{mutant['line']} {mutant['operator']}: {mutant['result']}"
              + (f" by {by}" if by else ""), flush=True)

    def work(task):
        (measure if isinstance(task, area_tests.Test) else try_it)(task)

    # In this order in each area.
    tasks = [(area, x) for area, some in tests.items() for x in some]
    tasks += [(x["area"], x) for x in wanted if x["number"] not in broken]
    in_turn(tasks, options.at_once, work, runner.stop)


def named(tests, area, names):
    """Those of the tests that have one of the names, or all."""
    unknown = set(names or []) - {x.name for x in tests}
    if unknown:
        raise Failure(f"--tests {area}={'|'.join(names)}: the area has no test {', '.join(sorted(unknown))}")
    return [x for x in tests if not names or x.name in names]


def in_turn(tasks, at_once, work, stop):
    """Calls work(task) for each (area, task), several at once, but never two of an area, whose are done in their order:
    its tests may share a port or a folder. The first exception ends all."""
    left, busy, failures, condition = list(tasks), set(), [], threading.Condition()

    def take():
        with condition:
            while left and not failures:
                for area, task in left:
                    if area not in busy:
                        busy.add(area)
                        left.remove((area, task))
                        return area, task
                condition.wait()
        return None, None

    def loop():
        while (taken := take())[0] is not None:
            try:
                work(taken[1])
            except BaseException as failure:  # pylint: disable=broad-except
                failures.append(failure)
                stop()
            with condition:
                busy.discard(taken[0])
                condition.notify_all()

    threads = [threading.Thread(target=loop) for _ in range(at_once)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException as failure:
        failures.append(failure)
        stop()
        raise
    if failures:
        raise failures[0]


def killer(runner, number, file, tests):
    """The test that notices the mistake, or None. The cases that look as if they were about the file come first."""
    tests = sorted(tests, key=lambda x: x.seconds)
    near = {x.name: [] if x.filter else area_tests.near(x, file) for x in tests}
    for test in tests:
        if near[test.name] and (by := noticed(runner, test, number, names=near[test.name])):
            return by
    for test in tests:
        if by := noticed(runner, test, number, but=near[test.name]):
            return by
    return None


def noticed(runner, test, number, **which):
    """The test and the case of it that notices the mistake; None if it passes, or fails without the mistake too."""
    failed = set()
    for _ in range(2):
        outcome = runner.run(test, number, **which)
        if outcome.passed:
            return None
        if outcome.case not in {x.name for x in test.cases}:
            return test.name  # it ended before the first case
        if runner.run(test, 0, names=[outcome.case]).passed and (
                outcome.case in failed or not runner.run(test, number, names=[outcome.case]).passed):
            return f"{test.name}: {outcome.case}"
        failed.add(outcome.case)
    return None


# --- the record and the report -----------------------------------------------------------------------


def load(path, wanted, options, draw):
    """The record to go on with: the file's if that is wanted and it is of the same draw, else a new one."""
    if not options.resume and not options.again:
        return {**wanted, "mutants": [{"number": number, "area": area, **mutant.as_dict(), "result": None, "by": None}
                                      for number, (area, mutant) in enumerate(draw(), 1)]}
    if not path.is_file():
        raise Failure(f"{path} is not there; call without --resume and --again")
    record = json.loads(path.read_text())
    differ = [key for key, value in wanted.items() if record.get(key) != value and (key != "commit" or options.resume)]
    if differ:
        raise Failure(f"{path} is of another {', '.join(differ)}; call without --resume and --again")
    return record


def save(path, record):
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(record, indent=1) + "\n")
    beside.replace(path)


def report(record, reasons):
    """The results as Markdown."""
    mutants = [x for x in record["mutants"] if x["result"]]
    yield "# Mutants"
    yield ""
    yield "Small mistakes made one at a time, and whether the area's tests noticed. What found them, in commit"
    yield f"{record['commit'][:10]}:"
    yield ""
    yield "```sh"
    yield f"tools/mutants.py --areas {record['areas']} --count {record['count']} --seed {record['seed']}"
    yield "```"
    yield ""
    yield "| area | tried | killed | survived | did not compile | noticed |"
    yield "|---|---|---|---|---|---|"
    for area in [*sorted({x["area"] for x in mutants}), "all"]:
        of_area = [x for x in mutants if area in (x["area"], "all")]
        killed, survived, broken = (sum(x["result"] == result for x in of_area) for result in RESULTS)
        noticed_part = f"{100 * killed // (killed + survived)} %" if killed + survived else "-"
        yield f"| {area} | {killed + survived} | {killed} | {survived} | {broken} | {noticed_part} |"
    yield ""
    if len(mutants) < len(record["mutants"]):
        yield f"{len(record['mutants']) - len(mutants)} more were drawn and are not tried yet."
        yield ""
    for area, tests in sorted(record.get("tests", {}).items()):
        yield f"- {area}: " + ", ".join(f"`{x}`" for x in tests)
    left_out = sorted({f"`{x}`" for tests in record.get("tests", {}).values() for some in tests.values() for x in some})
    if left_out:
        yield f"\nLeft out, since they fail without a mistake, too: {', '.join(left_out)}."
    yield ""
    yield "## Survivors"
    yield from _bullets([x for x in mutants if x["result"] == "survived"], lambda x: reasons.get(_bullet(x), []))
    yield ""
    yield "## Survivors that were given a test"
    yield from _bullets([x for x in mutants if x.get("survived")], lambda x: [f"  `{x['by']}`"])


def _bullets(mutants, below):
    yield ""
    for mutant in sorted(mutants, key=lambda x: (x["file"], x["line"])):
        yield _bullet(mutant)
        before, after = (" ".join(mutant[side].split()).replace("`", "'") for side in ("before", "after"))
        before, after = (x if len(x) <= MOST_SHOWN else x[:MOST_SHOWN - 3] + "..." for x in (before, after))
        yield f"  `{before}`" + (f" became `{after}`" if after.strip(";") else " was dropped")
        yield from below(mutant)
    if not mutants:
        yield "None."


def _bullet(mutant):
    return f"- {mutant['number']}. `{mutant['file']}:{mutant['line']}` {mutant['operator']}:"


def reasons_in(text):
    """{bullet: the indented lines under it, but for the first, which is the mistake} of a report."""
    found, last = {}, None
    for line in text.splitlines():
        if line.startswith("- "):
            last = found.setdefault(line, [])
        elif line.startswith("  ") and last is not None:
            last.append(line)
        else:
            last = None
    return {bullet: lines[1:] for bullet, lines in found.items()}


def run(options):
    folder = options.root / "build" / "mutants"
    path = folder / "mutants.json"

    def draw():
        return mutations.draw(texts_of(options.root, options.areas), options.count, options.seed)

    if options.list:
        for number, (_, mutant) in enumerate(draw(), 1):
            print(f"{number}. {mutant.file}:{mutant.line}: {mutant.operator}: {mutant.before!r} -> {mutant.after!r}")
        return
    wanted = {"areas": ",".join("+".join(x) for x in options.areas.values()), "count": options.count,
              "seed": options.seed, "commit": git(options.root, "rev-parse", "HEAD").strip()}
    record = load(path, wanted, options, draw)
    to_try = [x for x in record["mutants"] if x["result"] == ("survived" if options.again else None)
              and x["area"] in (options.only or options.areas)]
    preset = options.preset or ("core" if {x for some in options.areas.values() for x in some} <= NO_TORCH
                                else "release")
    if to_try:
        with MutantBuild(options.root, folder, preset, options.jobs, options.keep) as build:
            try_some(build, area_tests.Runner(), record, to_try, options, lambda: save(path, record))
    page = Path(options.report or folder / "report.md")
    reasons = reasons_in(page.read_text()) if page.is_file() else {}
    page.write_text("\n".join(report(record, reasons)) + "\n")
    counts = ", ".join(f"{sum(x['result'] == result for x in record['mutants'])} {result}" for result in RESULTS)
    print(f"mutants: {counts}; {page}")


def areas_of(text):
    """{"a": ["a", "b"], "c": ["c"]} of a+b,c"""
    found = {x.split("+")[0]: x.split("+") for x in sorted(set(text.split(",")))}
    if not all(re.fullmatch(r"\w+", folder) for folders in found.values() for folder in folders):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list such as comm,checkpoint+checkpoint_files")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--areas", required=True, type=areas_of, help="folders of src/, with commas between them")
    parser.add_argument("--only", type=areas_of, help="try those of some of the areas now, the others with --resume")
    parser.add_argument("--count", type=int, default=80)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests", action="append", default=[], metavar="AREA=TEST|TEST", help="CTests instead of all "
                        "of an area's own")
    parser.add_argument("--without", default="cuda,fuzz,mpi,python,slurm,ssh", type=lambda x: x.split(","),
                        help="labels of CTests that are left out; %(default)s")
    parser.add_argument("--preset", help="of CMake; core if no area needs libtorch, else release")
    parser.add_argument("--jobs", type=int, default=1, help="compilers at once")
    parser.add_argument("--at-once", type=int, default=1, help="mistakes at once, of different areas")
    parser.add_argument("--report", help="where the Markdown goes; build/mutants/report.md if not given")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--keep", action="store_true", help="leave the worktree with its build; the next call uses it")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--root", default=ROOT, type=lambda x: Path(x).resolve(), help=argparse.SUPPRESS)
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))  # leaves the `with` block
    try:
        tests = {}
        for given in options.tests:
            area, equals, names = given.partition("=")
            if not equals or area not in options.areas:
                raise Failure(f"--tests {given}: not AREA=TEST|TEST of one of {', '.join(options.areas)}")
            tests[area] = names.split("|")
        options.tests = tests
        run(options)
    except Failure as failure:
        sys.exit(f"mutants: {failure}")
    except KeyboardInterrupt:
        sys.exit("mutants: stopped; --resume goes on")


if __name__ == "__main__":
    main()
