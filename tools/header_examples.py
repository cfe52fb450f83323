#!/usr/bin/env python3
"""Turns the examples in the public headers into C++ that is compiled, and checks that each is marked.

    tools/header_examples.py --out FILE [--root DIR]    write all examples into one file
    tools/header_examples.py --check [--root DIR]       one line per violation; exit code 1 if any

How an example is marked. A comment line says `Example:`, and the code follows with three spaces or
more after the slashes. Lines of `//` alone may be between. The next line of prose ends it:

    // Example:
    //   auto group = lockstep::init();
    //
    //   group.barrier();
    //
    // Here is prose again.

It becomes the body of a function, whose class provides the names of tests/docs/prelude.h: `group`,
`model`, `data` and so on. An example may declare them anew. It includes nothing and names lockstep's
types in full. `Example at namespace scope:` marks declarations that cannot be inside a function.
Tables and lists are indented too; what makes a block code is a line that ends with ; or { or }.

The check refuses code that is not marked, marks without code, a public header that
<lockstep/lockstep.h> does not reach, and one that uses a name of std without the header of that name.
"""
import argparse
import re
import sys
from pathlib import Path

INCLUDE = "include/lockstep"
UMBRELLA = f"{INCLUDE}/lockstep.h"
# Needs headers of c10d that a program may not have.
NOT_IN_UMBRELLA = {f"{INCLUDE}/comm/c10d.h"}

# Which header of std has which names; others are left to the compiler.
STD = {
    "array": "array", "chrono": "chrono", "exception": "exception_ptr", "functional": "function", "map": "map",
    "memory": "make_shared make_unique shared_ptr unique_ptr", "optional": "nullopt optional", "ostream": "ostream",
    "span": "span", "string": "string", "string_view": "string_view", "tuple": "tuple",
    "utility": "forward move pair", "variant": "variant visit", "vector": "vector",
}
STD_HEADER_OF = {name: header for header, names in STD.items() for name in names.split()}

COMMENT = re.compile(r"^(\s*)//(.*)$")
CODE = re.compile(r"^   +\S")
MARK = re.compile(r"^ Example( at namespace scope)?:$")
LIST_ITEM = re.compile(r"^ +(-|\d+\.) ")


class Example:
    def __init__(self, path, line, is_at_namespace_scope):
        self.path, self.line, self.is_at_namespace_scope = path, line, is_at_namespace_scope
        self.code = []

    def cpp(self, number):
        place = f'#line {self.line + 1} "{self.path}"'
        code = "\n".join(self.code).rstrip()
        if self.is_at_namespace_scope:
            return f"namespace example_{number} {{\n{place}\n{code}\n}}  // namespace example_{number}\n"
        return (f"struct Example{number} : Assumed {{\n  int run();\n}};\n"
                f"int Example{number}::run() {{\n{place}\n{code}\n  return 0;\n}}\n")


class Header:
    """Finds the examples of one header, and what looks like one."""

    def __init__(self, root, path):
        self.path, self.examples, self.violations = path, [], []
        self.lines = (root / path).read_text(encoding="utf-8").split("\n")
        example, is_refused = None, False  # what the line belongs to: an example, a block already refused
        for number, line in enumerate(self.lines, 1):
            comment = COMMENT.match(line)
            text = comment.group(2) if comment else None
            mark = MARK.match(text) if comment else None
            if mark:
                self._end(example)
                example = Example(path, number, mark.group(1) is not None)
                self.examples.append(example)
            elif comment and (CODE.match(text) or text == ""):
                if example:
                    example.code.append(text[3:])
                elif not is_refused and self._is_code(text):
                    self._fail(number, "code in a comment that is not marked",
                               "write `// Example:` above it, or make it a sentence")
                    is_refused = True
            else:
                self._end(example)
                example, is_refused = None, False
            if comment and "```" in text:
                self._fail(number, "a fence", "indent the code and write `// Example:` above it")
        self._end(example)

    @staticmethod
    def _is_code(text):
        return not LIST_ITEM.match(text) and re.search(r"[;{}]\s*(//.*)?$", text) is not None

    def missing_std_headers(self):
        text = "\n".join(self.lines)
        code = re.sub(r'//.*|"(\\.|[^"\\\n])*"', "", text)
        used = {STD_HEADER_OF.get(name) for name in re.findall(r"\bstd::(\w+)", code)} - {None}
        if re.search(r"\bu?int\d+_t\b", code):
            used.add("cstdint")
        return sorted(used - set(re.findall(r"^#include <(\w+)>", text, re.MULTILINE)))

    def _end(self, example):
        if example and not any(example.code):
            self._fail(example.line, "a mark without code", "indent the code by three spaces, right below it")

    def _fail(self, line, what, remedy):
        self.violations.append(f"{self.path}:{line}: {what}; {remedy}")


def headers(root):
    paths = sorted(path.relative_to(root).as_posix() for path in (root / INCLUDE).rglob("*.h"))
    return [Header(root, path) for path in paths]


def reached_from(root, path, found):
    """Adds the path, and what it includes of lockstep, to `found`."""
    if path not in found and (root / path).is_file():
        found.add(path)
        for name in re.findall(r"^#include <(lockstep/[^>]+)>", (root / path).read_text(), re.MULTILINE):
            reached_from(root, f"include/{name}", found)
    return found


def check(root):
    reached = reached_from(root, UMBRELLA, set())
    for header in headers(root):
        yield from header.violations
        for name in header.missing_std_headers():
            yield f"{header.path}:1: it uses a name of <{name}>; include that header"
        if header.path not in reached | NOT_IN_UMBRELLA:
            yield f"{header.path}:1: <lockstep/lockstep.h> does not reach this header; include it there"


def generate(root):
    examples = [example for header in headers(root) for example in header.examples]
    parts = ["// Written by tools/header_examples.py.\n"]
    parts += [example.cpp(number) for number, example in enumerate(examples, 1)]
    parts.append(f"constexpr int kNumExamples = {len(examples)};\n")
    return "\n".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--out", type=Path, help="the file to write")
    task.add_argument("--check", action="store_true", help="look for code that is not marked")
    arguments = parser.parse_args()
    if arguments.out:
        arguments.out.write_text(generate(arguments.root), encoding="utf-8")
        return 0
    violations = list(check(arguments.root))
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
