"""Where the functions of a C++ file have their bodies, and a file in which a body has several forms at once."""
import re
from dataclasses import dataclass

from tree.namespaces import blanked

SCOPE = re.compile(r"^(?:inline\s+)?namespace\b|^extern$")
TYPE = re.compile(r"^(?:class|struct|union)\b")
COMPILED_AWAY = re.compile(r"\b(?:constexpr|consteval)\b")
OPERATOR = re.compile(r"\boperator\s*(?:\(\s*\)|\[\s*\]|[^\s\w(]+)")


@dataclass(frozen=True)
class Body:
    start: int  # its brace, in the text
    end: int  # behind the brace that closes it


def bodies(text):
    """The bodies of functions that run, in order: of constructors, operators and methods too, not of constexpr ones,
    which a compiler may run, and not of those that are a try block. A lambda is a part of the function it is in."""
    found = []
    code = blanked(text)
    _scan(code, 0, len(code), found)
    return found


def _scan(code, at, end, found):
    """Reads the declarations of a namespace or a class."""
    start = at
    while at < end:
        if code[at] == ";":
            at = start = at + 1
        elif code[at] in "([":
            at = _after(code, at)
        elif code[at] != "{":
            at += 1
        else:
            at, is_whole = _braces(code, start, at, found)
            start = at if is_whole else start


def _braces(code, start, at, found):
    """What begins with a brace: (where to read on, whether the declaration ended there)."""
    head = _head(code[start:at])
    after = _after(code, at)
    if SCOPE.match(head):
        _scan(code, at + 1, after - 1, found)
        return after, True
    if "(" in head and "=" not in head[:head.index("(")]:
        colon = re.search(r"\)[^()]*?(?<!:):(?!:)", head)
        if colon and re.search(r"[\w>]$", head[colon.end():].rstrip()):
            return after, False  # of a member, in a constructor's initialisers
        if re.search(r"\btry\b", head):
            while re.match(r"\s*catch\b", code[after:]):
                after = _after(code, code.index("{", after))
        elif not COMPILED_AWAY.search(head):
            found.append(Body(at, after))
        return after, True
    if TYPE.match(head):
        _scan(code, at + 1, after - 1, found)
    return after, False  # until its semicolon


def _head(text):
    """A declaration in one line, without its template, what is in parentheses and what an operator is called."""
    text = " ".join(OPERATOR.sub("operator_", text).split())
    while match := re.match(r"(?:public|private|protected)\s*:(?!:)\s*|\[\[.*?\]\]\s*", text):
        text = text[match.end():]
    while match := re.match(r"template\s*<", text):
        text = text[_after(text, match.end() - 1, "<", ">"):].lstrip()
    previous = None
    while previous != text:
        previous, text = text, re.sub(r"\([^()]+\)", "()", text)
    # Types with arguments: std::function<void()> has parentheses, too.
    previous = None
    while previous != text:
        previous, text = text, re.sub(r"<[^<>]*>", "", text)
    return text


def _after(code, at, opening=None, closing=None):
    """The place behind the bracket that closes the one at `at`."""
    opening = opening or code[at]
    closing = closing or {"(": ")", "{": "}", "[": "]"}[opening]
    depth = 0
    while at < len(code):
        depth += (code[at] == opening) - (code[at] == closing)
        at += 1
        if depth == 0:
            break
    return at


@dataclass(frozen=True)
class Span:
    """Lines of a woven text, and whose they are: a mutant's, or, as a whole function, those of several."""
    first: int
    last: int
    numbers: tuple


def weave(text, mutants):
    """(text, spans): the text with all of {number: mutant} in it. Each body that holds some has a form for each, which
    is the one that runs where lockstep_mutant(number) of MUTANT_HEADER holds, and the one without a mistake."""
    in_body = {}
    for body in bodies(text):
        inside = {number: mutant for number, mutant in mutants.items()
                  if body.start < mutant.start and mutant.start + len(mutant.before) < body.end}
        if inside:
            in_body[body] = inside
    left = mutants.keys() - {number for inside in in_body.values() for number in inside}
    if left:
        raise ValueError(f"mutant {min(left)} is in no function's body")
    woven, spans, at = f'#include "{MUTANT_HEADER}"\n', [], 0
    for body, inside in in_body.items():
        woven += text[at:body.start] + "{"
        first = _line(woven)
        for number, mutant in sorted(inside.items()):
            begin = _line(woven)
            form = mutant.apply(text)[body.start:body.end + len(mutant.after) - len(mutant.before)]
            woven += f" if (::lockstep_mutant({number})) {form}\n"
            spans.append(Span(begin, _line(woven) - 1, (number,)))
            woven += "else"
        woven += f" {text[body.start:body.end]} }}"
        spans.append(Span(first, _line(woven), tuple(sorted(inside))))
        at = body.end
    return woven + text[at:], spans


def _line(text):
    return text.count("\n") + 1


MUTANT_HEADER = "lockstep_mutant.h"
MUTANT_VARIABLE = "LOCKSTEP_MUTANT"
# Static, not inline: files of one program are compiled for several instruction sets.
MUTANT_HEADER_TEXT = f"""#pragma once
#include <cstdlib>
// Whether the mistake of this number is the one that this process makes.
[[maybe_unused]] static bool lockstep_mutant(int number) {{
  static const int current = [] {{
    const char* text = std::getenv("{MUTANT_VARIABLE}");
    return text == nullptr ? 0 : std::atoi(text);
  }}();
  return number == current;
}}
"""
