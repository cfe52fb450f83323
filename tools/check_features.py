#!/usr/bin/env python3
"""Checks docs/concepts/ddp-features.md: every row is there, and every test it names exists, those for a GPU in a
cuda_*_test.cpp.

    tools/check_features.py [--root DIR]

One line per violation, `path:line: what; how to mend it`. Exit code 1 if there is any.
"""
import argparse
import re
import sys
from pathlib import Path

TABLE = "docs/concepts/ddp-features.md"
NUM_ROWS = {"F": 34, "S": 24}
NAMED = re.compile(r"`(\w+\.\w+)`")
TEST = re.compile(r"^TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)", re.MULTILINE)


def tests_in(root, pattern):
    found = set()
    for source in (root / "tests").rglob(pattern):
        found.update(".".join(match) for match in TEST.findall(source.read_text()))
    return found


def check(root):
    known = tests_in(root, "*_test.cpp")
    on_gpu = tests_in(root, "cuda_*_test.cpp")
    seen = []
    for number, line in enumerate((root / TABLE).read_text().split("\n"), 1):
        cells = [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]
        if not re.fullmatch(r"[FS]\d+", cells[0]):
            continue
        seen.append(cells[0])
        where = f"{TABLE}:{number}: row {cells[0]}"
        if len(cells) != 5:
            yield f"{where} has {len(cells)} cells; five are row, there, here, proof, on a GPU"
            continue
        is_here = not cells[2].startswith("not here:")
        named = NAMED.findall(cells[3])
        if not named and is_here:
            yield f"{where} names no test; name one, or begin its third cell with 'not here:' and the reason"
        for test in named:
            if test not in known:
                yield f"{where} names {test}, which no file under tests/ has; mend the name"
        named = NAMED.findall(cells[4])
        if not named and is_here and not cells[4].startswith("as on the CPU:"):
            yield (f"{where} names no test on a GPU; name one, or begin its last cell with 'as on the CPU:' and the "
                   "reason")
        for test in named:
            if test not in on_gpu:
                yield f"{where} names {test} for a GPU, which no tests/**/cuda_*_test.cpp has; mend the name"
    wanted = [f"{letter}{i}" for letter, count in NUM_ROWS.items() for i in range(1, count + 1)]
    if seen != wanted:
        yield f"{TABLE}:1: rows are not F1..F34, S1..S24 in order: {sorted(set(wanted) ^ set(seen))}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    violations = list(check(parser.parse_args().root))
    print("\n".join(violations), end="\n" if violations else "")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
