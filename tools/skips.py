#!/usr/bin/env python3
"""Lists the tests that the last `make test` did not run, each with its reason: cases that skipped themselves, whole
CTests, and what this configuration does not build.

    tools/skips.py [--build build/release]            list them
    tools/skips.py --strict                           and fail where one is not in tests/skips.txt
    tools/skips.py --brief                            only how many
    tools/skips.py --requirements                     only check that LOCKSTEP_REQUIRE names services

tests/skips.txt has lines `PATTERN: REASON`. The pattern is matched with the whole name as the shell matches files:
`formats_test/Zip.Reads*` is a case of gtest, `install_test/Class.test_x` one of Python, `tree_format` a CTest. --strict
is for whole runs: it also fails on a pattern that no test's name matches, and on results that are missing.

It reads what configuring wrote (tests.txt) and what the run wrote (test-results/).
"""
import argparse
import os
import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMES_OF_SERVICES = "tests/support/service.h"
# unittest -v: "test_x (__main__.Class.test_x)", perhaps the first line of its docstring, then "... ok".
UNITTEST_CASE = re.compile(r"^(test\w*|setUpClass|setUpModule) \(([\w.]+)\)")
UNITTEST_SKIP = re.compile(r"\.\.\. skipped (['\"])(.*)\1$")
UNITTEST_COUNT = re.compile(r"^OK \(.*?\bskipped=(\d+)|^FAILED \(.*?\bskipped=(\d+)")


@dataclass
class Results:
    """What ran: every name; the skipped ones with what they said; what should be there and is not."""
    names: set = field(default_factory=set)
    skipped: dict = field(default_factory=dict)
    problems: list = field(default_factory=list)

    def skip(self, name, reason):
        self.names.add(name)
        self.skipped[name] = " ".join(reason.split()) or "no reason given"


def read(build):
    """The results of the last run in the folder; raises FileNotFoundError if there was none."""
    build, results = Path(build), Results()
    kinds = {}
    for line in (build / "tests.txt").read_text().splitlines():
        if not line.strip():
            continue
        kind, name, *reason = line.split("|")
        if kind == "absent":
            results.skip(name, "not built: " + "|".join(reason))
        else:
            kinds[name] = kind
    folder = build / "test-results"
    for case in ElementTree.parse(folder / "ctest.xml").getroot().iter("testcase"):
        name = case.get("name")
        results.names.add(name)
        skipped = case.find("skipped")
        kind = kinds.get(name, "plain")
        if case.get("status") == "fail":
            results.problems += [f"{name} failed; what it skipped is not known"] if kind == "gtest" \
                and not _read_gtest(folder / f"{name}.xml", name, results) else []
        elif skipped is not None or case.get("status") in ("notrun", "disabled"):
            results.skip(name, (skipped.get("message") or "") if skipped is not None else "")
        elif kind == "gtest":
            if not _read_gtest(folder / f"{name}.xml", name, results):
                results.problems.append(f"{name} ran and left no results in {folder.name}/{name}.xml")
        elif kind == "unittest":
            _read_unittest(case.findtext("system-out") or "", name, results)
    return results


def _read_gtest(path, ctest, results):
    try:
        root = ElementTree.parse(path).getroot()
    except (FileNotFoundError, ElementTree.ParseError):
        return False
    for case in root.iter("testcase"):
        name = f"{ctest}/{case.get('classname')}.{case.get('name')}"
        results.names.add(name)
        if case.get("result") == "skipped":
            # The message is file:line, a line break, the text.
            messages = [(x.get("message") or "").split("\n", 1)[-1] for x in case.findall("skipped")]
            results.skip(name, " ".join(messages))
        elif case.get("result") == "suppressed":
            results.skip(name, "its name begins with DISABLED_")
    return True


def _read_unittest(text, ctest, results):
    count, current = 0, None
    for line in text.splitlines():
        if case := UNITTEST_CASE.match(line):
            path = case.group(2).split(".")
            owner = path[-2] if path[-1] == case.group(1) and len(path) > 1 else path[-1]
            current = f"{ctest}/{owner}.{case.group(1)}"
            results.names.add(current)
        if current and (skip := UNITTEST_SKIP.search(line)):
            results.skip(current, skip.group(2))
            count += 1
        if total := UNITTEST_COUNT.match(line):
            total = int(total.group(1) or total.group(2))
            if total != count:
                results.problems.append(f"{ctest} skipped {total} cases and named {count}; give it -v")


def read_list(path):
    """[(pattern, reason)]; raises ValueError with the place."""
    entries = []
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        pattern, colon, reason = line.partition(":")
        if not colon or not reason.strip() or not pattern.strip():
            raise ValueError(f"{path}:{number}: not PATTERN: REASON")
        entries.append((pattern.strip(), reason.strip()))
    return entries


def unlisted(results, entries):
    return sorted(x for x in results.skipped if not any(fnmatchcase(x, pattern) for pattern, _ in entries))


def report(results, entries):
    """The lines of the list: each reason, and below it the names that it covers with their own words."""
    rest = dict(sorted(results.skipped.items()))
    for pattern, reason in entries:
        covered = [x for x in rest if fnmatchcase(x, pattern)]
        if covered:
            yield f"{pattern}: {reason}"
            for name in covered:
                yield f"    {name}: {rest.pop(name)}"
    if rest:
        yield "in no list:"
        for name, said in rest.items():
            yield f"    {name}: {said}"


def mistakes(results, entries, path):
    """What --strict fails on, one sentence each."""
    for name in unlisted(results, entries):
        yield f"{name} was skipped ({results.skipped[name]}); make it run, or write its reason into {path}"
    for pattern, _ in entries:
        if not any(fnmatchcase(x, pattern) for x in results.names):
            yield f"{path}: no test is called {pattern}; mend the pattern or delete the line"
    yield from results.problems


def services(root=ROOT):
    text = (Path(root) / NAMES_OF_SERVICES).read_text()
    return re.findall(r'^\s*"([\w-]+)",', text[text.index("kServices[]"):].split("};")[0], re.MULTILINE)


def wrong_requirements(value, known):
    """The names in a value of LOCKSTEP_REQUIRE that are no service's."""
    return [x or "(an empty name)" for x in value.split(",") if x not in known] if value else []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--list", type=Path, default=ROOT / "tests" / "skips.txt")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--brief", action="store_true")
    parser.add_argument("--requirements", action="store_true")
    arguments = parser.parse_args()
    known = services()
    if wrong := wrong_requirements(os.environ.get("LOCKSTEP_REQUIRE", ""), known):
        sys.exit(f"skips: LOCKSTEP_REQUIRE names {', '.join(wrong)}; there are {', '.join(known)}")
    if arguments.requirements:
        return 0
    try:
        entries = read_list(arguments.list)
        results = read(arguments.build)
    except (FileNotFoundError, ElementTree.ParseError) as error:
        sys.exit(f"skips: there are no results of a run: {error}; call make test first")
    except ValueError as error:
        sys.exit(f"skips: {error}")
    new = unlisted(results, entries)
    print(f"{len(results.skipped)} tests or cases were skipped, {len(new)} of them with no reason in "
          f"{arguments.list.name}" + ("; tools/skips.py lists them" if arguments.brief else ""))
    if not arguments.brief:
        print("\n".join(report(results, entries)))
    wrong = list(mistakes(results, entries, arguments.list.name)) if arguments.strict else []
    sys.stdout.flush()
    for mistake in wrong:
        print(f"skips: {mistake}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
