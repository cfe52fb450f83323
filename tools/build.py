#!/usr/bin/env python3
"""Builds, and says on one line how far it is and how long it will take.

    tools/build.py build/release [-j 2] [TARGET...]

On a terminal the line is rewritten; elsewhere there is one every ten seconds. What compilers say comes through as it
is. The exit code is ninja's. The time is estimated from what each step took the last time (.ninja_log), or from what
such a step takes, and from how fast this build has been so far.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

from check_tree import NO_TORCH

EVERY_S = 10
STATUS = "@step %f %t@ "
STEP = re.compile(r"^@step (\d+) (\d+)@ (.*)$")
OUTPUT = re.compile(r"\b([\w./+-]+\.(?:o|gch|a|so)|bin/[\w-]+)\b")
# Seconds of one core.
PCH_S, TORCH_S, LINK_S, PLAIN_S, OTHER_S = 30, 9, 1, 1.5, 0.5


def weight(step, log):
    """What the step will cost; log: {output: seconds the last time}."""
    output = OUTPUT.search(step)
    if output and output.group(1) in log:
        return max(log[output.group(1)], 0.05)
    if not output or not step.startswith(("Building", "Linking", "Generating")):
        return OTHER_S
    path = output.group(1)
    if path.endswith(".gch"):
        return PCH_S
    if not path.endswith(".o"):
        return LINK_S
    area = re.match(r"(?:src|tests)/(\w+)/|apps/(lockstep)/", path)
    return PLAIN_S if area and (area.group(2) or area.group(1) in NO_TORCH | {"support"}) else TORCH_S


def read_log(path):
    """{output: seconds} of .ninja_log."""
    found = {}
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        fields = line.split("\t")
        if len(fields) == 5 and fields[0].isdigit() and fields[1].isdigit():
            found[fields[3]] = (int(fields[1]) - int(fields[0])) / 1000
    return found


class Estimate:
    """How long the steps that are left will take."""

    def __init__(self, steps, log, jobs):
        self.log = log
        self.left = sum(weight(step, log) for step in steps)
        self.rate = float(jobs)  # weight per second
        self.past = deque()  # (when, weight left) of the last while
        self.begin = None

    def done(self, step, now):
        if self.begin is None:
            self.begin = now
        self.left = max(0, self.left - weight(step, self.log))
        self.past.append((now, self.left))
        # The last half minute, or quarter of the whole: steps found in a cache come in bursts.
        while len(self.past) > 2 and now - self.past[0][0] > max(30, (now - self.begin) / 4):
            self.past.popleft()
        span = now - self.past[0][0]
        if span >= 5:
            self.rate = max((self.past[0][1] - self.left) / span, 0.01)

    def seconds_left(self):
        return self.left / self.rate


def duration(seconds):
    seconds = int(seconds + 0.5)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 600:
        return f"{seconds // 60} min {seconds % 60} s" if seconds % 60 else f"{seconds // 60} min"
    minutes = (seconds + 30) // 60
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def roughly(seconds):
    """Not more exact than it is known."""
    return duration(round(seconds / 5) * 5 if seconds < 60 else round(seconds / 30) * 30 if seconds < 300
                    else round(seconds / 60) * 60) if seconds >= 5 else "a few seconds"


def counted(steps):
    return "1 step" if steps == 1 else f"{steps} steps"


class Line:
    """The line of progress, between what else is printed."""

    def __init__(self, out, is_terminal, columns):
        self.out, self.is_terminal, self.columns = out, is_terminal, columns
        self.shown_at = None
        self.is_open = False

    def show(self, text, now, is_last=False):
        if self.is_terminal:
            self.out.write("\r\x1b[K" + text[:self.columns - 1] + ("\n" if is_last else ""))
            self.is_open = not is_last
        elif is_last or self.shown_at is None or now - self.shown_at >= EVERY_S:
            self.out.write(text + "\n")
            self.shown_at = now
        self.out.flush()

    def pass_on(self, text):
        if self.is_open:
            self.out.write("\r\x1b[K")
            self.is_open = False
        self.out.write(text)
        self.out.flush()


def follow(lines, estimate, line, clock=time.monotonic):
    """Prints what ninja says; returns how many steps were made."""
    finished = 0
    for text in lines:
        match = STEP.match(text.rstrip("\n"))
        if not match:
            if not text.startswith(("ninja: no work to do", "ninja: Entering directory")):
                line.pass_on(text)
            continue
        now = clock()
        finished, total, step = int(match.group(1)), int(match.group(2)), match.group(3)
        estimate.done(step, now)
        if finished < total:
            what = Path(OUTPUT.search(step).group(1)).name if line.is_terminal and OUTPUT.search(step) else ""
            line.show(f"build: {finished} of {total}, {100 * finished // total} %, "
                      f"{roughly(estimate.seconds_left())} left" + (f"  {what}" if what else ""), now)
    return finished


def planned(ninja, folder, targets):
    """The steps that ninja would make."""
    done = subprocess.run([ninja, "-C", folder, "-n", *targets], capture_output=True, text=True, check=False,
                          env={**os.environ, "NINJA_STATUS": STATUS})
    return [match.group(3) for match in map(STEP.match, done.stdout.splitlines()) if match]


def ninja_of(folder):
    cache = folder / "CMakeCache.txt"
    if cache.is_file() and (match := re.search(r"^CMAKE_MAKE_PROGRAM:\w+=(.+)$", cache.read_text(), re.MULTILINE)):
        return match.group(1)
    return "ninja"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-j", type=int, default=os.cpu_count() or 1)
    parser.add_argument("targets", nargs="*")
    arguments = parser.parse_intermixed_args()
    ninja = ninja_of(arguments.folder)
    # First the list of steps itself, where a CMakeLists.txt has changed.
    configured = subprocess.run([ninja, "-C", arguments.folder, "build.ninja"], stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    if configured.returncode != 0:
        print(configured.stdout, end="")
        return configured.returncode
    steps = planned(ninja, arguments.folder, arguments.targets)
    is_terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    line = Line(sys.stdout, is_terminal, shutil.get_terminal_size().columns)
    begin = time.monotonic()
    estimate = Estimate(steps, read_log(arguments.folder / ".ninja_log"), arguments.j)
    if steps:
        line.show(f"build: {counted(len(steps))}, {roughly(estimate.seconds_left())}", begin)
    with subprocess.Popen([ninja, "-C", arguments.folder, "-j", str(arguments.j), *arguments.targets], text=True,
                          errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={**os.environ, "NINJA_STATUS": STATUS}) as process:
        try:
            finished = follow(process.stdout, estimate, line)
        except KeyboardInterrupt:  # ninja has it too, and ends
            process.wait()
            line.pass_on("build: interrupted\n")
            return 130
    took = duration(time.monotonic() - begin)
    if process.returncode != 0:
        line.pass_on(f"build: failed after {took}\n")
    elif finished:
        line.show(f"build: {counted(finished)} in {took}", time.monotonic(), is_last=True)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
