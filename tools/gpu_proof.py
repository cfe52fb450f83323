"""What tools/gpu_proof.sh runs; its head says how to call it."""
import argparse
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

PARTS = ("tests", "sanitizer", "bench")
SANITIZED = "device_cuda_test"
# Not the case that starts a process, nor the one that wants an error of the driver, which memcheck would report.
SANITIZED_CASES = "*:-*SharedMemoryCanBePinned:*FirstQuestion"
SANITIZER_FOUND_SOMETHING = 99
REPORT = "@REPORT@"  # stands in a command line for GoogleTest's report
LEAST_S = 5  # a program with less time than this is not started
MAX_MESSAGE = 4000
TAIL_LINES = 25
# The goals: how far a loss may be from the other's, relatively; by how much a program may start later.
MAX_TO_ONE_RANK = 1e-5
MAX_TO_CPU = 1e-4
MAX_TO_PYTORCH = 1e-4
MAX_START_MS = 20
MIN_LOSS_DROP = 1e-3  # ten times what two losses may differ


# How the reason of a skip begins that a machine with one GPU explains.
NEEDS_MORE = "needs two GPUs"


@dataclass
class Step:
    """A program to run; `judge` makes of what it did a Result."""
    name: str
    part: str
    argv: list
    judge: callable
    limit_s: float
    env: dict = field(default_factory=dict)


@dataclass
class Result:
    """What summary.json has for each program."""
    name: str
    part: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0
    exit_code: int | None = None
    timed_out: bool = False
    failures: list = field(default_factory=list)  # {"name", "message"}
    skips: list = field(default_factory=list)     # {"name", "message"}
    result: dict | None = None                    # what a bench printed

    def fail(self, name, message):
        self.failures.append({"name": name, "message": message[:MAX_MESSAGE]})
        self.failed += 1

    def skip(self, name, message):
        self.skips.append({"name": name, "message": message[:MAX_MESSAGE]})
        self.skipped += 1

    @property
    def is_good(self):
        return self.failed == 0 and all(x["message"].startswith(NEEDS_MORE) for x in self.skips)


def end_of(output):
    return "\n".join(output.splitlines()[-TAIL_LINES:])


def how_it_ended(result):
    return f"it was stopped after {result.seconds:.0f} s" if result.timed_out else f"exit code {result.exit_code}"


# --- tests -------------------------------------------------------------------------------------------

ENDED = re.compile(r"^\[ +(OK|FAILED|SKIPPED) +\] ([\w./]+)", re.MULTILINE)
BEGUN = re.compile(r"^\[ RUN +\] ([\w./]+)", re.MULTILINE)


def judge_gtest(result, output, report):
    """From GoogleTest's report; from what was printed if it did not live to write one."""
    try:
        root = ElementTree.parse(report).getroot()
    except (FileNotFoundError, ElementTree.ParseError):
        judge_printed(result, output)
        return
    for case in root.iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        failures = case.findall("failure")
        if failures:
            result.fail(name, "\n".join(x.get("message") or "" for x in failures))
        elif case.get("result") == "skipped":
            result.skip(name, " ".join((x.get("message") or "").split("\n", 1)[-1] for x in case.findall("skipped")))
        elif case.get("result") == "completed":
            result.passed += 1
    if result.failed == 0 and (result.exit_code != 0 or result.timed_out):
        result.fail(result.name, f"{how_it_ended(result)}\n{end_of(output)}")
    if result.passed + result.failed + result.skipped == 0:
        result.fail(result.name, "no case was run")


def judge_printed(result, output):
    ended = {name: how for how, name in ENDED.findall(output)}
    for name, how in ended.items():
        if how == "OK":
            result.passed += 1
        elif how == "SKIPPED":
            result.skip(name, "")
        else:
            result.fail(name, "see log.txt")
    hanging = [name for name in BEGUN.findall(output) if name not in ended]
    result.fail(hanging[-1] if hanging else result.name,
                f"the program ended in this case: {how_it_ended(result)}\n{end_of(output)}")


def test_steps(pack, plan, env):
    for test in json.loads((pack / "pack.json").read_text())["tests"]:
        filters = [f"--gtest_filter={plan.gtest_filter}"] if plan.gtest_filter else []
        own = dict(x.split("=", 1) for x in test["environment"])
        argv = [str(pack / "bin" / test["program"]), *test["arguments"], *filters, f"--gtest_output=xml:{REPORT}"]
        yield Step(name=test["name"], part="tests", argv=argv, judge=judge_gtest, env={**env, **own},
                   limit_s=min(plan.each, test["timeout_s"]))


# --- compute-sanitizer -------------------------------------------------------------------------------


def find_sanitizer():
    folders = os.pathsep.join([os.environ.get("PATH", ""), f"{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/bin",
                               "/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer"])
    return shutil.which("compute-sanitizer", path=folders) or "compute-sanitizer"


def judge_sanitizer(result, output, report):
    summary = re.findall(r"^=+ (?:ERROR|RACECHECK) SUMMARY: (.*)$", output, re.MULTILINE)
    cases = Result(result.name, result.part, exit_code=0)
    judge_gtest(cases, output, report)
    if result.exit_code != 0 or result.timed_out:
        problem = "it found something" if result.exit_code == SANITIZER_FOUND_SOMETHING else how_it_ended(result)
        reports = [x for x in output.splitlines() if x.startswith("=====")]
        result.fail(result.name, problem + "\n" + "\n".join(reports[:40] or [end_of(output)]))
    elif not summary or not re.match(r"0 (errors|hazards)", summary[-1]):
        result.fail(result.name, f"no summary without errors: {summary}\n{end_of(output)}")
    result.passed = cases.passed
    result.skips, result.skipped = cases.skips, cases.skipped
    result.failures += cases.failures
    result.failed += cases.failed


def sanitizer_steps(pack, plan, env):
    cases = plan.gtest_filter or SANITIZED_CASES
    for tool in ("memcheck", "racecheck"):
        argv = [find_sanitizer(), "--tool", tool, "--error-exitcode", str(SANITIZER_FOUND_SOMETHING),
                "--kernel-name", "kns=lockstep", str(pack / "bin" / SANITIZED), f"--gtest_filter={cases}",
                f"--gtest_output=xml:{REPORT}"]
        yield Step(name=tool, part="sanitizer", argv=argv, judge=judge_sanitizer, limit_s=plan.each, env=env)


# --- benches -----------------------------------------------------------------------------------------


def judge_bench(result, output, report):
    lines = [x for x in output.splitlines() if x.startswith("{")]
    try:
        result.result = json.loads(lines[-1])
    except (IndexError, json.JSONDecodeError):
        result.fail(result.name, f"{how_it_ended(result)}, without a line of JSON\n{end_of(output)}")
        return
    if result.exit_code != 0 or result.timed_out:
        result.fail(result.name, f"{how_it_ended(result)}\n{end_of(output)}")
    for case in result.result.get("cases", []):
        wrong = list(missed_goals(case))
        name = f"{case.get('model', case.get('program'))}" + (f" on {case['ranks']} ranks" if "ranks" in case else "")
        if wrong:
            result.fail(name, "; ".join(wrong))
        else:
            result.passed += 1
    if result.passed + result.failed == 0:
        result.fail(result.name, "it names no case")


def missed_goals(case):
    limits = {"max_loss_difference_to_one_rank": MAX_TO_ONE_RANK, "max_loss_difference_to_cpu": MAX_TO_CPU,
              "max_loss_difference_to_pytorch": MAX_TO_PYTORCH, "later_ms": MAX_START_MS}
    for goal, limit in limits.items():
        if goal in case and not (case[goal] is not None and case[goal] <= limit):
            yield f"{goal} is {case[goal]}, at most {limit} is right"
    if "loss_drop" in case and not case["loss_drop"] >= MIN_LOSS_DROP:
        yield f"loss_drop is {case['loss_drop']}: too little was learned for equal losses to prove anything"
    for goal in ("same_bits_across_ranks", "shards_same_bits"):
        if case.get(goal) is False:
            yield f"{goal} is false"


def bench_steps(pack, plan, env):
    lockstep = str(pack / "bin" / "lockstep")
    yield Step(name="gpu-parity", part="bench", argv=[lockstep, "bench", "gpu-parity", "--ranks", "1,2,4", "--json"],
               judge=judge_bench, limit_s=plan.each, env=env)
    for script in ("gpu_parity", "gpu_start"):
        path = pack / "bench" / f"{script}.py"
        if path.exists():
            yield Step(name=script, part="bench", judge=judge_bench, limit_s=plan.each,
                       argv=[sys.executable, "-B", str(path), "--lockstep", shlex.join([str(pack / "run"), "lockstep"])])


# --- running -----------------------------------------------------------------------------------------


def environment(pack):
    """That of our programs; python3 and compute-sanitizer find their own libraries."""
    torch = os.environ.get("LOCKSTEP_TORCH")
    if not torch:
        found = importlib.util.find_spec("torch")
        if not found:
            sys.exit("gpu_proof: python3 has no torch; set LOCKSTEP_TORCH to the folder of a libtorch with CUDA")
        torch = found.submodule_search_locations[0]
    own = [f"{torch}/lib", str(pack / "lib")] + list(filter(None, [os.environ.get("LD_LIBRARY_PATH")]))
    return {"LD_LIBRARY_PATH": ":".join(own), "LOCKSTEP_TORCH": torch,
            "LOCKSTEP_TEST_PROGRAM": str(pack / "bin" / "lockstep")}


def run(step, limit_s, log):
    """Runs the program, and ends it with all that it started when its time is over."""
    result = Result(step.name, step.part)
    with tempfile.TemporaryDirectory(prefix="lockstep-proof-") as folder:
        report = Path(folder) / "report.xml"
        argv = [x.replace(REPORT, str(report)) for x in step.argv]
        output = Path(folder) / "output"
        begin = time.monotonic()
        with open(output, "wb") as file:
            try:
                process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=folder,
                                           env={**os.environ, **step.env}, start_new_session=True)
            except OSError as error:
                result.fail(step.name, f"{step.argv[0]} cannot be started: {error.strerror}")
                return result
            try:
                result.exit_code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                result.timed_out = True
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            result.exit_code = process.wait()
        result.seconds = round(time.monotonic() - begin, 1)
        text = output.read_text(errors="replace")
        log.write(f"\n==== {step.name}: {' '.join(map(str, step.argv))}\n{text}\n==== {how_it_ended(result)}\n")
        log.flush()
        step.judge(result, text, report)
    return result


def machine():
    """What a reader of the results wants to know of the place."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        gpus = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30).stdout.splitlines()
    except (OSError, subprocess.TimeoutExpired):
        gpus = []
    return {"gpus": gpus, "kernel": os.uname().release, "cores": os.cpu_count()}


def parse(argv):
    parser = argparse.ArgumentParser(prog="gpu_proof.sh", description="Proves lockstep on a GPU machine.")
    parser.add_argument("pack", type=Path, help="the folder made by tools/gpu_pack.sh")
    parser.add_argument("out", type=Path, help="the folder for summary.json and log.txt")
    parser.add_argument("--only", default=",".join(PARTS), help="parts to run, of %(default)s")
    parser.add_argument("--filter", default="*", help="which programs, matched as the shell matches files")
    parser.add_argument("--gtest-filter", default="", help="which cases of the tests, as GoogleTest takes it")
    parser.add_argument("--seconds", type=float, default=540, help="for everything (default: %(default)s)")
    parser.add_argument("--each", type=float, default=240, help="at most, for each program (default: %(default)s)")
    plan = parser.parse_args(argv)
    plan.only = plan.only.split(",")
    if wrong := [x for x in plan.only if x not in PARTS]:
        parser.error(f"--only {','.join(wrong)}: the parts are {', '.join(PARTS)}")
    if not (plan.pack / "pack.json").is_file():
        parser.error(f"{plan.pack} is no folder made by tools/gpu_pack.sh: it has no pack.json")
    return plan


def line_of(result):
    text = f"{'ok    ' if result.is_good else 'FAILED'} {result.name}: {result.passed} passed, " \
           f"{result.failed} failed, {result.skipped} skipped in {result.seconds} s"
    for kind, cases in (("failed", result.failures), ("skipped", result.skips)):
        for case in cases:
            first = (case["message"].splitlines() or [""])[0]
            text += f"\n         {kind} {case['name']}: {first[:150]}"
    return text


def main(argv):
    plan = parse(argv)
    pack, end = plan.pack.resolve(), time.monotonic() + plan.seconds
    plan.out.mkdir(parents=True, exist_ok=True)
    env = environment(pack)
    makers = {"tests": test_steps, "sanitizer": sanitizer_steps, "bench": bench_steps}
    steps = [x for part in plan.only for x in makers[part](pack, plan, env) if fnmatchcase(x.name, plan.filter)]
    if not steps:
        sys.exit(f"gpu_proof: --filter '{plan.filter}' leaves nothing to run")
    results = []
    begin = time.monotonic()
    with open(plan.out / "log.txt", "w", encoding="utf-8") as log:
        for step in steps:
            left = end - time.monotonic()
            if left >= LEAST_S:
                result = run(step, min(left, step.limit_s), log)
            else:
                result = Result(step.name, step.part)
                result.fail(step.name, f"not run: the {plan.seconds:.0f} s for everything were spent")
            results.append(result)
            print(line_of(result), flush=True)
    about = json.loads((pack / "pack.json").read_text())
    good = all(x.is_good for x in results)
    summary = {"ok": good, "commit": about["commit"], "modified": about["modified"], "machine": machine(),
               "seconds": round(time.monotonic() - begin, 1), "programs": [asdict(x) for x in results]}
    (plan.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(f"gpu_proof: {'all is well' if good else 'something failed or was skipped'}; {plan.out / 'summary.json'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
