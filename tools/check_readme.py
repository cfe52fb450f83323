#!/usr/bin/env python3
"""Checks that what README.md and docs/**/*.md name exists: links, paths, `make` targets, sub-commands of
`lockstep` and their flags; and that the program in README.md is the one in examples/.

    tools/check_readme.py [--root DIR] [--bin build/release/bin]

One line per violation, `path:line: what; how to mend it`. Exit code 1 if there is any.
"""
import argparse
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

FIRST_EXAMPLE = "examples/00_first_light.cpp"
# Back-ticked text is a path if it starts with one of these, or is one of the files in the root.
FOLDERS = {".ci", "apps", "bench", "cmake", "docs", "examples", "include", "recipes", "src", "tests", "tools", "web"}
ROOT_FILE = re.compile(r"^(Makefile|LICENSE|CMakeLists\.txt|[A-Z_]+\.md)$")
SHELL_FENCES = {"", "sh", "bash", "console", "shell"}
COMMAND_ENDS = {"|", "&&", "||", ";", "&", ">", ">>", "2>&1"}


class Document:
    """A Markdown file in pieces: prose with its inline code, and fenced blocks."""

    def __init__(self, path, text):
        self.path = path
        self.prose = []   # (line number, text)
        self.blocks = []  # (line number of the first line, language, [lines])
        block = None
        for number, line in enumerate(text.split("\n"), 1):
            fence = re.match(r"^\s*```+\s*(\S*)", line)
            if fence and block is None:
                block = (number + 1, fence.group(1), [])
                self.blocks.append(block)
            elif fence:
                block = None
            elif block is not None:
                block[2].append(line)
            else:
                self.prose.append((number, line))

    def inline_code(self):
        for number, line in self.prose:
            for code in re.findall(r"`([^`]+)`", line):
                yield number, code.strip()

    def links(self):
        for number, line in self.prose:
            bare = re.sub(r"`[^`]*`", "", line)
            for target in re.findall(r"\]\(<?([^)\s>]+)>?[^)]*\)", bare):
                yield number, target

    def commands(self):
        """(line number, words) of each shell command."""
        for number, code in self.inline_code():
            yield number, split_words(code)
        for start, language, lines in self.blocks:
            if language not in SHELL_FENCES:
                continue
            joined, first = "", start
            for number, line in enumerate(lines, start):
                first = first if joined else number
                joined += re.sub(r"^\s*\$ ", "", line)
                if joined.endswith("\\"):
                    joined = joined[:-1] + " "
                    continue
                yield first, split_words(joined)
                joined = ""

    def anchors(self):
        titles = [re.sub(r"^#+\s*", "", line) for _, line in self.prose if re.match(r"^#+\s", line)]
        return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


class Checker:
    def __init__(self, root, bin_dir=None):
        self.root = Path(root)
        self.bin_dir = Path(bin_dir) if bin_dir else None
        self.violations = []
        self.help = {}
        names = [self.root / "README.md"] + sorted((self.root / "docs").rglob("*.md"))
        self.documents = [Document(p, p.read_text(encoding="utf-8")) for p in names if p.is_file()]
        makefile = self.root / "Makefile"
        text = makefile.read_text() if makefile.is_file() else ""
        self.make_targets = set(re.findall(r"^([A-Za-z][\w-]*):", text, re.M))

    def run(self):
        for document in self.documents:
            for number, target in document.links():
                self._check_link(document, number, target)
            for number, code in document.inline_code():
                self._check_path(document, number, code)
            for number, words in document.commands():
                self._check_make(document, number, words)
                if self.bin_dir:
                    self._check_lockstep(document, number, words)
        self._check_first_example()
        return [f"{path}:{line}: {text}" for path, line, text in sorted(set(self.violations))]

    def _fail(self, document, number, what, remedy):
        name = document.path.relative_to(self.root).as_posix()
        self.violations.append((name, number, f"{what}; {remedy}"))

    # --- links and paths --------------------------------------------------------------------------

    def _check_link(self, document, number, target):
        if re.match(r"^[a-z]+:", target):
            return
        path, _, anchor = target.partition("#")
        file = (document.path.parent / path) if path else document.path
        if not file.exists():
            self._fail(document, number, f"the link {target} leads nowhere", "correct or remove it")
        elif anchor and file.suffix == ".md":
            other = Document(file, file.read_text(encoding="utf-8"))
            if anchor not in other.anchors():
                self._fail(document, number, f"no heading #{anchor} in {path or 'this page'}", "correct the link")

    def _check_path(self, document, number, code):
        if not re.match(r"^[\w./*-]+$", code):
            return  # a command, a placeholder such as <area>, or C++
        path = code[2:] if code.startswith("./") else code
        parts = path.split("/")
        if not (len(parts) > 1 and parts[0] in FOLDERS) and not ROOT_FILE.match(path):
            return
        for base in (self.root, document.path.parent):
            if any(base.glob(path.rstrip("/"))):
                return
        self._fail(document, number, f"`{code}` is not there", "correct the path")

    # --- commands ---------------------------------------------------------------------------------

    def _check_make(self, document, number, words):
        if "make" not in words:
            return
        at = words.index("make")
        if any(not re.match(r"^(\w+=.*|sudo|time|&&|cd)$", w) for w in words[:at]) and "&&" not in words[:at]:
            return  # `make` as a word of something else
        for word in words[at + 1:]:
            if word in COMMAND_ENDS:
                break
            if not re.match(r"^[a-z][\w-]*$", word):
                continue
            if word not in self.make_targets:
                self._fail(document, number, f"the Makefile has no target {word}", "see `make help`")

    def _check_lockstep(self, document, number, words):
        for at, word in enumerate(words[:-1]):
            if os.path.basename(word) != "lockstep" or re.match(r"^[-<\[(:,.]", words[at + 1]):
                continue
            command = words[at + 1]
            if command in COMMAND_ENDS or not re.match(r"^[a-z]+$", command):
                continue
            if not self._help_of([]):
                self._fail(document, number, f"{self.bin_dir}/lockstep does not run", "build it first")
                return
            if not re.search(rf"^\s+{command}\b", self._help_of([]), re.M):
                self._fail(document, number, f"lockstep has no sub-command {command}", "see `lockstep --help`")
                continue
            self._check_flags(document, number, command, words[at + 2:])

    def _check_flags(self, document, number, command, words):
        flags = flags_in(self._help_of(self._command_with_help(command, words)))
        skip = False
        for word in words:
            if word == "--" or word in COMMAND_ENDS:
                return
            if skip:
                skip = False
            elif word.startswith("--"):
                flag = word.strip("[]").split("=")[0].replace("_", "-")
                if flag not in flags:
                    self._fail(document, number, f"lockstep {command} has no flag {flag}",
                               f"see `lockstep {command} --help`")
                skip = flags.get(flag, False) and "=" not in word
            elif command == "run" and not word.startswith("-"):
                return  # the program that is run; what follows belongs to it

    def _command_with_help(self, command, words):
        """`lockstep bench ddp` has other flags than `lockstep bench`: the longer name, if it has a help of its own."""
        if command != "run" and words and re.match(r"^[a-z][a-z-]*$", words[0]) and self._help_of([command, words[0]]):
            return [command, words[0]]
        return [command]

    def _help_of(self, command):
        key = " ".join(command)
        if key not in self.help:
            try:
                result = subprocess.run([self.bin_dir / "lockstep", *command, "--help"], capture_output=True,
                                        text=True, timeout=60, check=False)
                self.help[key] = result.stdout if result.returncode == 0 else ""
            except OSError:
                self.help[key] = ""
        return self.help[key]

    # --- the program in the README ----------------------------------------------------------------

    def _check_first_example(self):
        example = self.root / FIRST_EXAMPLE
        readme = next((d for d in self.documents if d.path == self.root / "README.md"), None)
        if readme is None or not example.is_file():
            return
        lines = example.read_text(encoding="utf-8").split("\n")
        marks = [i for i, line in enumerate(lines) if re.match(r"\s*// \[/?readme\]\s*$", line)]
        if len(marks) != 2:
            self._fail(readme, 1, f"{FIRST_EXAMPLE} lacks its two marks",
                       "put `// [readme]` and `// [/readme]` around the part that README.md shows")
            return
        wanted = normal(lines[marks[0] + 1:marks[1]])
        programs = [(start, normal(b)) for start, language, b in readme.blocks if language in {"cpp", "c++"}]
        if any(block == wanted for _, block in programs):
            return
        self._fail(readme, programs[0][0] if programs else 1, f"the C++ program is not that of {FIRST_EXAMPLE}",
                   "copy the part between its [readme] marks")


def flags_in(help_text):
    """{flag: whether it takes a value}. "  -s,--set KEY=VALUE   text": one space before a value, more before text."""
    flags = {}
    for names, value in re.findall(r"^\s+(-[\w,-]+)(?: (\S+))?", help_text, re.M):
        for name in names.split(","):
            flags[name.replace("_", "-")] = bool(value)
    return flags


def normal(lines):
    return textwrap.dedent("\n".join(line.rstrip() for line in lines)).strip("\n")


def split_words(command):
    try:
        return shlex.split(command, comments=True)
    except ValueError:  # an apostrophe in a sentence
        return command.split()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--root", default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--bin", help="the folder of the built programs; without it sub-commands are not checked")
    arguments = parser.parse_args()
    violations = Checker(arguments.root, arguments.bin).run()
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
