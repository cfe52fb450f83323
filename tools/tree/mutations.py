"""Small mistakes that a programmer could make, as edits of a C++ text: what tools/mutants.py draws from."""
import random
import re
from dataclasses import asdict, dataclass

from tree.functions import bodies
from tree.namespaces import blanked

COMPARISONS = {"==": "!=", "!=": "==", "<": "<=", "<=": "<", ">": ">=", ">=": ">"}
ASSIGNMENT = r"[\w.\->\[\]()*:]+ (?:[+\-*|&^]?=) \S"
CALL = r"[\w.\->\[\]():*<>]+\("
# What begins otherwise is a declaration or ends the function.
STATEMENT = re.compile(rf"^[ \t]+(?!(?:return|throw|using|delete|break|continue|else|case)\b)"
                       rf"(?:{CALL}|{ASSIGNMENT}|\+\+|--).*;[ \t]*$", re.MULTILINE)
# A mistake here could reach beyond the test, or is none that a test should see.
SPARED = re.compile(r"\b(?:kill|killpg|remove|remove_all|unlink\w*|rmdir|rename\w*|umount2?|reboot)\s*\("
                    r"|\b(?:static_assert|reserve)\s*\(|\blog::|\bLOCKSTEP_CHECK|\bSIGKILL\b|\bpid_?\b")


@dataclass(frozen=True)
class Mutant:
    file: str
    line: int
    operator: str
    start: int  # in the text, in characters
    before: str
    after: str

    def apply(self, text):
        """The text with the mistake; raises ValueError if it is another text."""
        if text[self.start:self.start + len(self.before)] != self.before:
            raise ValueError(f"{self.file}:{self.line} is not what it was")
        return text[:self.start] + self.after + text[self.start + len(self.before):]

    def as_dict(self):
        return asdict(self)


def mutants_in(file, text):
    """Every mutant of a file, in order."""
    code = blanked(text)
    lines = text.split("\n")
    found = []
    for operator, find in OPERATORS.items():
        for start, end, after in find(code, text):
            line = code.count("\n", 0, start) + 1
            if after is not None and text[start:end] != after and not SPARED.search(lines[line - 1]):
                found.append(Mutant(file, line, operator, start, text[start:end], after))
    return sorted(found, key=lambda x: (x.start, x.operator, x.after))


def in_bodies(file, text):
    """Every mutant of what runs, in order: of the bodies of functions."""
    spans = [(x.start, x.end) for x in bodies(text)]
    return [x for x in mutants_in(file, text)
            if any(start < x.start and x.start + len(x.before) < end for start, end in spans)]


def draw(texts, count, seed):
    """`count` mutants of {area: {file: text}}, fewer if there are no more: as many from each area, from each kind of
    mistake, as there can be. The same for the same texts, count and seed."""
    source = random.Random(seed)
    left = {}
    for area in sorted(texts):
        by_operator = {}
        for file in sorted(texts[area]):
            for mutant in in_bodies(file, texts[area][file]):
                by_operator.setdefault(mutant.operator, []).append(mutant)
        for mutants in by_operator.values():
            source.shuffle(mutants)
        left[area] = by_operator
    drawn, places = [], set()
    while len(drawn) < count and any(left.values()):
        for area in sorted(left):
            while left[area] and len(drawn) < count:
                operator = source.choice(sorted(left[area]))
                mutant = left[area][operator].pop()
                if not left[area][operator]:
                    del left[area][operator]
                place = (mutant.file, mutant.line, operator)
                if place not in places:  # one of a kind in a line
                    places.add(place)
                    drawn.append((area, mutant))
                    break
    return drawn


# --- the operators: (start, end, new text) in a text whose comments and literals are blanked -------


def _comparisons(code, _):
    for match in re.finditer(r"(?<= )(==|!=|<=|>=|<|>)(?= )", code):
        yield match.start(), match.end(), COMPARISONS[match.group()]


def _constants(code, _):
    for match in re.finditer(r"(?<![\w.'])(0|[1-9]\d*)(?![\w.'])", code):
        value = int(match.group())
        yield match.start(), match.end(), str(value + 1)
        if value > 0:
            yield match.start(), match.end(), str(value - 1)


def _statements(code, _):
    for match in STATEMENT.finditer(code):
        before = code[:match.start()].rstrip()
        line = match.group().strip()
        is_whole = line.count("(") == line.count(")") and line.count("{") == line.count("}")
        if is_whole and (not before or before[-1] in ";{}:"):
            start = code.index(line, match.start())
            yield start, start + len(line), ";"


def _conditions(code, text):
    for match in re.finditer(r"\bif \(", code):
        end = _closing(code, match.end() - 1)
        condition = code[match.end():end]
        if end != -1 and ";" not in condition and not re.search(r"(?<![=!<>])=(?!=)", condition):
            yield match.end(), end, f"!({text[match.end():end]})"


def _signs(code, text):
    for match in re.finditer(r"(?<=[\w)\]] )[+-](?= [\w(])", code):
        line = text[text.rfind("\n", 0, match.start()) + 1:text.find("\n", match.start())]
        if '"' not in line:  # texts are added, too
            yield match.start(), match.end(), "-" if match.group() == "+" else "+"


def _returns(code, _):
    for match in re.finditer(r"\breturn ([^;{}]+);", code):
        value = match.group(1)
        if value in ("true", "false"):
            new = "false" if value == "true" else "true"
        elif re.fullmatch(r"0|[1-9]\d*", value):
            new = str(int(value) + 1)
        elif re.fullmatch(r"\s*(?:\*this|nullptr|std::nullopt|)\s*", value):
            continue  # {} says the same, or nothing
        else:
            new = "{}"
        yield match.start(1), match.end(1), new


def _operands(code, text):
    for match in re.finditer(r"(?<=\S)\s(?:&&|\|\|)\s+(?=\S)", code):
        end = _end_of_operand(code, text, match.end())
        if end is not None:
            yield match.start(), end, ""


def _extremes(code, _):
    for match in re.finditer(r"(?<=std::)(min|max)(?=[(<])", code):
        yield match.start(), match.end(), "max" if match.group() == "min" else "min"


OPERATORS = {
    "comparison": _comparisons,
    "constant": _constants,
    "dropped statement": _statements,
    "negated condition": _conditions,
    "sign": _signs,
    "return value": _returns,
    "dropped operand": _operands,
    "min for max": _extremes,
}


def _closing(code, at):
    """Where the parenthesis at `at` is closed; -1 if nowhere."""
    depth = 0
    for place in range(at, len(code)):
        depth += (code[place] == "(") - (code[place] == ")")
        if depth == 0:
            return place
    return -1


def _end_of_operand(code, text, at):
    depth = 0
    for place in range(at, len(code)):
        if code[place] in "([{":
            depth += 1
        elif code[place] in ")]}":
            depth -= 1
            if depth < 0:
                return place
        elif depth == 0 and (code[place] in ";,?" or code.startswith(("&&", "||"), place)):
            return at + len(text[at:place].rstrip())  # it may end with a literal
    return None
