"""The tests of an area: which CTests they are, how long each case takes, and a run of some of them with a mistake,
apart from all else on the host. Used by tools/mutants.py."""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

LEAST_LIMIT_S = 10
FIRST_LIMIT_S = 3600
MOST_FILE_BLOCKS = 16 << 21  # of 512 bytes: 16 GiB
OWN_FILTER = "--gtest_filter="


class Failure(Exception):
    """It cannot be tried; the text says why."""


@dataclass(frozen=True)
class Case:
    name: str
    file: str  # clip_test
    seconds: float


@dataclass
class Test:
    """A CTest."""
    name: str
    binary: str
    command: list
    folder: str
    environment: dict
    seconds: float = 0
    cases: list = field(default_factory=list)  # those that pass without a mistake
    left_out: list = field(default_factory=list)  # names of those that do not

    @property
    def filter(self):
        """That of the command, where it is some cases of a binary."""
        return next((x.removeprefix(OWN_FILTER) for x in self.command if x.startswith(OWN_FILTER)), "")

    def filter_without(self, names):
        """Its own filter without some more; "" if it needs none."""
        names = [*names, *self.left_out]
        if not names:
            return self.filter
        return self.filter + (":" if "-" in self.filter else "-") + ":".join(names)

    def limit_s(self, names=None):
        return LEAST_LIMIT_S + 3 * (self.seconds if names is None else sum(x.seconds for x in self.cases
                                                                          if x.name in names))


@dataclass(frozen=True)
class Outcome:
    passed: bool
    case: str = ""  # that failed, or in which it ended
    text: str = ""


def binaries_of(build, folders, without):
    """The binaries of a configured build that have a test's source in one of the folders of tests/, but for those whose
    CTest has a label in `without`."""
    left_out = {x["name"] for x in _listed(build) if set(_properties(x).get("LABELS", [])) & set(without)}
    found = []
    for line in (build / "targets.txt").read_text().splitlines():
        kind, name, _, sources = line.split("|") if line else ("", "", "", "")
        if kind == "test" and any(re.search(rf"\btests/{folder}/[\w/]*_test\.cpp", sources) for folder in folders):
            found.append(name)
    return [x for x in found if x in _gtests(build) and x not in left_out]


def tests_of(build, binaries, without):
    """The CTests of these binaries, once they are built: before, CTest does not know their commands."""
    found = []
    for test in _listed(build):
        command, properties = test.get("command", []), _properties(test)
        binary = next((Path(x).name for x in command if Path(x).name in binaries), None)
        if binary and test["name"] in _gtests(build) and not set(properties.get("LABELS", [])) & set(without):
            environment = dict(x.split("=", 1) for x in properties.get("ENVIRONMENT", []))
            found.append(Test(test["name"], binary, [x for x in command if not x.startswith("--gtest_output=")],
                              properties.get("WORKING_DIRECTORY", str(build)), environment))
    return found


def _listed(build):
    asked = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], capture_output=True, text=True,
                           check=False)
    if asked.returncode != 0:
        raise Failure(f"ctest cannot list the tests of {build}: {asked.stderr.strip()}")
    return json.loads(asked.stdout)["tests"]


def _properties(test):
    return {x["name"]: x["value"] for x in test.get("properties", [])}


def _gtests(build):
    return {x.split("|")[1] for x in (build / "tests.txt").read_text().splitlines() if x.startswith("gtest|")}


def near(test, source):
    """The cases whose file's name has most words in common with the source's; none, if there is no such word."""
    words = set(Path(source).stem.split("_"))
    common = {x.file: len(words & set(x.file.split("_")) - {"test"}) for x in test.cases}
    most = max(common.values(), default=0)
    return [x.name for x in test.cases if most and common[x.file] == most]


class Runner:
    """Runs tests, several at once from several threads, each in a PID namespace where that can be had: what a test
    starts ends with it and cannot signal anything else."""

    def __init__(self):
        self.prefix = _namespace()
        self._lock = threading.Lock()
        self._running = set()
        self._is_stopped = False

    def measure(self, test):
        """Fills in how long it takes, which cases it has, and which fail without a mistake, too."""
        begin = time.monotonic()
        test.cases, failed = self._cases(test, [])
        test.seconds = time.monotonic() - begin
        if failed:  # a host under load gets a second chance
            passed, test.left_out = self._cases(test, [OWN_FILTER + ":".join(failed)])
            test.cases += passed

    def _cases(self, test, more):
        """The cases that passed, and the names of those that failed."""
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            result = Path(folder) / "cases.xml"
            outcome = self._run(test, [*more, f"--gtest_output=xml:{result}"], 0, FIRST_LIMIT_S)
            if not result.is_file():
                raise Failure(f"{test.name} fails without a mistake:\n{outcome.text[-2000:]}")
            return _read_cases(result)

    def run(self, test, number, names=None, but=()):
        """The test with the mistake `number`: the cases `names`, or all `but` some."""
        chosen = test.filter_without(but) if names is None else ":".join(names)
        return self._run(test, [OWN_FILTER + chosen] if chosen else [], number, test.limit_s(names))

    def stop(self):
        """Ends what runs; nothing can be started after it."""
        with self._lock:
            self._is_stopped = True
            for process in self._running:
                os.killpg(process.pid, signal.SIGKILL)

    def _run(self, test, more, number, limit_s):
        # A short folder: sockets are made there. No pipe: what outlives the test could hold it for ever.
        with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder, \
                tempfile.TemporaryFile() as said:
            env = {**os.environ, **test.environment, "TMPDIR": folder, "LOCKSTEP_MUTANT": str(number),
                   "GTEST_FAIL_FAST": "1" if number else "0"}
            with self._lock:
                if self._is_stopped:
                    raise Failure("stopped")
                process = subprocess.Popen([*self.prefix, *test.command, *more], cwd=test.folder, env=env,
                                           stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True)
                self._running.add(process)
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            with self._lock:
                self._running.discard(process)
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            said.seek(0)
            text = said.read().decode(errors="replace")
            return Outcome(code == 0, "" if code == 0 else _failed_case(text), text[-4000:])


def _failed_case(text):
    failed = re.findall(r"^\[  FAILED  \] ([\w/.]+)", text, re.MULTILINE)
    begun = re.findall(r"\[ RUN      \] ([\w/.]+)", text)
    return failed[0] if failed else begun[-1] if begun else ""


def _read_cases(path):
    """The cases that passed, and the names of those that failed, from GoogleTest's XML."""
    passed, failed = [], []
    for suite in ElementTree.parse(path).getroot().iter("testsuite"):
        for case in suite.iter("testcase"):
            name = f"{suite.get('name')}.{case.get('name')}"
            if case.find("failure") is not None:
                failed.append(name)
            elif case.get("status") == "run" and case.get("result") != "skipped":
                passed.append(Case(name, Path(case.get("file", "")).stem, float(case.get("time"))))
    return passed, failed


def _namespace():
    """The command in front of tests. A mistake may ask for memory without end: a process gets two thirds of it."""
    memory_kib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 2 // 3 // 1024
    # A shell at its head: it reaps what tests orphan. Names in /dev/shm that hold a PID are no other test's.
    shell = ["sh", "-c", f'ulimit -v {memory_kib}; ulimit -f {MOST_FILE_BLOCKS}; "$@"; exit $?', "sh"]
    alone = ["sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh"]
    prefix = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--ipc", *alone, *shell]
    try:
        subprocess.run([*prefix, "true"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return prefix
    except (OSError, subprocess.CalledProcessError):
        print("mutants: no PID namespace can be had here; tests run without", file=sys.stderr)
        return shell
