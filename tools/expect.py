#!/usr/bin/env python3
"""Runs a command that must end with code 0 and whose output must match. CTest's PASS_REGULAR_EXPRESSION looks at the
text alone: a program that fails after its last line would pass.

    tools/expect.py REGEX COMMAND [ARGUMENT...]
"""
import re
import subprocess
import sys


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    pattern, command = sys.argv[1], sys.argv[2:]
    try:
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                check=False)
    except OSError as error:
        sys.exit(f"expect: cannot start {command[0]}: {error.strerror}")
    print(result.stdout, end="", flush=True)
    if result.returncode != 0:
        end = f"with code {result.returncode}" if result.returncode > 0 else f"by signal {-result.returncode}"
        sys.exit(f"expect: it ended {end} instead of 0: {' '.join(command)}")
    if not re.search(pattern, result.stdout):
        sys.exit(f"expect: nothing in its output matches: {pattern}")


if __name__ == "__main__":
    main()
