"""What C++ files declare in which namespace: enough of a parser for declarations at namespace level."""
import re
from dataclasses import dataclass

BLANKED = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<delimiter>[^()\s\\]{0,16})\(.*?\)(?P=delimiter)"'
    r"|\"(?:\\.|[^\"\\\n])*\"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'|^[ \t]*#(?:\\\n|[^\n])*", re.DOTALL | re.MULTILINE)
NAMESPACE = re.compile(r"^(?:inline\s+)?namespace\b\s*(?:\[\[.*?\]\]\s*)?([\w:]*)$")
TYPE = re.compile(r"^(?:class|struct|union|enum(?:\s+(?:class|struct))?)\s+((?:\w+\s+)*?)((?:\w+\s*::\s*)*\w+)"
                  r"\s*(?:final\b|:|<|$)")
# TORCH_MODULE(Net); friend class Access;
NAMED = re.compile(r"^\s*[A-Z][A-Z0-9_]+\((\w+)|^\s*friend (?:class|struct) (\w+);", re.MULTILINE)
NOISE = re.compile(r"\b(?:decltype|noexcept|alignas|__attribute__|explicit|requires)\s*\((?:[^()]|\([^()]*\))*\)"
                   r"|\[\[.*?\]\]")


@dataclass
class Declaration:
    namespace: str  # "lockstep::comm"; an anonymous one is "(anonymous)"
    name: str
    line: int
    is_forward: bool  # class X; enum class X : int;


@dataclass
class Block:
    namespace: str
    line: int


def blanked(text):
    """The text with comments, literals and preprocessor lines as spaces: every character keeps its place."""
    return BLANKED.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def parse(text):
    """(blocks, declarations) of a file."""
    parser = _Parser(blanked(text))
    parser.scan(0, len(parser.text), "")
    return parser.blocks, parser.declarations


class _Parser:
    def __init__(self, text):
        self.text = text
        self.blocks = []
        self.declarations = []

    def scan(self, at, end, namespace):
        """Reads the declarations from `at` on, all in one namespace."""
        start = at
        while at < end:
            character = self.text[at]
            if character == "(":
                at = self._after(at)
            elif character == ";":
                self._declare(start, at, namespace, has_body=False)
                at = start = at + 1
            elif character == "{":
                at = start = self._braces(start, at, namespace)
            else:
                at += 1

    def _braces(self, start, at, namespace):
        """What begins with a brace; returns where the next declaration begins."""
        head = " ".join(self.text[start:at].split())
        after = self._after(at)
        if match := NAMESPACE.match(head):
            inner = match.group(1) or "(anonymous)"
            inner = f"{namespace}::{inner}" if namespace else inner
            self.blocks.append(Block(inner, self._line(at)))
            self.scan(at + 1, after - 1, inner)
            return after
        if re.match(r'^extern\s*$', head):  # "C", blanked
            self.scan(at + 1, after - 1, namespace)
            return after
        self._declare(start, at, namespace, has_body=True)
        if re.search(r"\)[^()=]*(?<!:):(?!:)", head):  # a constructor: its initialisers may have braces too
            while (following := self._next(after)) < len(self.text) and self.text[following] in ",{":
                brace = self.text.find("{", following)
                parenthesis = self.text.find("(", following) if self.text[following] == "," else -1
                if parenthesis != -1 and parenthesis < brace:
                    after = self._after(parenthesis)
                else:
                    after = self._after(brace)
            return after
        flat = re.sub(r"\([^()]*\)", "", re.sub(r"operator\s*[^\s\w(]+", "", head))
        if TYPE.match(_without_template(flat)) or "=" in flat or self.text[self._next(after):][:1] in (";", ","):
            while after < len(self.text) and self.text[after] != ";":
                after = self._after(after) if self.text[after] in "({" else after + 1
            return after + 1
        return after

    def _declare(self, start, end, namespace, has_body):
        head = " ".join(self.text[start:end].split())
        name = name_of(head)
        if name:
            place = start + len(self.text[start:end]) - len(self.text[start:end].lstrip())
            is_type = bool(TYPE.match(_without_template(NOISE.sub(" ", head)).strip()))
            self.declarations.append(Declaration(namespace, name, self._line(place), is_type and not has_body))

    def _after(self, at):
        """The place behind the bracket that closes the one at `at`."""
        opening = self.text[at]
        closing = {"(": ")", "{": "}"}[opening]
        depth = 0
        while at < len(self.text):
            depth += (self.text[at] == opening) - (self.text[at] == closing)
            at += 1
            if depth == 0:
                break
        return at

    def _next(self, at):
        while at < len(self.text) and self.text[at].isspace():
            at += 1
        return at

    def _line(self, at):
        return self.text.count("\n", 0, at) + 1


def name_of(head):
    """The name that a declaration declares, of A::b the A; None if it declares none that could be another's."""
    head = _without_template(NOISE.sub(" ", head)).strip()
    if not head or re.match(r"^(?:static_assert|using namespace|namespace|template|extern template|friend)\b", head):
        return None
    if match := re.match(r"^using\s+(\w+)\s*=", head):
        return match.group(1)
    if match := re.match(r"^using\s+[\w:]*?(\w+)$", head):
        return match.group(1)
    if match := re.match(r"^typedef\b.*?(\w+)$", head):
        return match.group(1)
    if match := TYPE.match(head):
        return re.split(r"\s*::\s*", match.group(2))[0]
    initialiser = re.search(r"(?<![=!<>+*/|&^-])=(?!=)", re.sub(r"operator\s*[^\s\w(]+", lambda m: "o" * len(m.group()),
                                                                head))
    declarator = _without_angles(head[:initialiser.start()] if initialiser and "(" not in head[:initialiser.start()]
                                 else head)
    if "operator" in declarator:
        match = re.search(r"(\w+)\s*::\s*(?:\w+\s*::\s*)*operator", declarator)
        return match.group(1) if match else None
    if "(" in declarator:
        match = re.search(r"((?:\w+\s*::\s*)*~?\w+)\s*\(", declarator)
    else:
        match = re.search(r"((?:\w+\s*::\s*)*\w+)\s*(?:\[[^\]]*\]\s*)*$", declarator)
    if not match or (match.group(1).isupper() and "(" in declarator and declarator.startswith(match.group(1))):
        return None  # a macro
    return re.split(r"\s*::\s*", match.group(1))[0]


def _without_template(head):
    """Without `template <...>` in front, and without words that say nothing about the name."""
    while match := re.match(r"^template\s*<", head):
        depth, at = 0, match.end() - 1
        while at < len(head):
            depth += (head[at] == "<") - (head[at] == ">")
            at += 1
            if depth == 0:
                break
        head = head[at:].lstrip()
    return re.sub(r"^(?:(?:inline|constexpr|consteval|constinit|static|extern|thread_local)\s+)+", "", head)


def _without_angles(text):
    previous = None
    while previous != text:
        previous, text = text, re.sub(r"<[^<>()]*>", "", text)
    return text


def public_names(texts):
    """What the public headers declare: {"lockstep": names, "lockstep::log": names, ...}."""
    found = {"lockstep": set()}
    for text in texts:
        for declaration in parse(text)[1]:
            found.setdefault(declaration.namespace, set()).add(declaration.name)
        for names in NAMED.findall(blanked(text)):
            found["lockstep"].update(name for name in names if name)
    return found


def misplaced(text, area, areas, may_use, public):
    """(line, what, remedy) for each declaration in a file of the area that is in a namespace not its own.

    areas: of all names of areas; may_use(area, other); public: what public_names() found."""
    blocks, declarations = parse(text)
    own = f"lockstep::{area}"
    for block in blocks:
        space = block.namespace
        if not space.startswith("lockstep::") or f"{space}::".startswith(f"{own}::") or "(anonymous)" in space:
            continue
        other = space.split("::")[1]
        inside = [d for d in declarations if d.namespace == space]
        if other in areas:
            if not (may_use(area, other) and inside and all(d.is_forward for d in inside)):
                yield block.line, f"namespace {space} in a file of {area}", f"its namespace is {own}"
        elif space not in public:
            yield block.line, f"namespace {space} in a file of {area}", f"its namespace is {own}, or one in it"
    seen = set()
    for declaration in declarations:
        space = declaration.namespace
        is_public = space == "lockstep" or (space in public and space.startswith("lockstep::")
                                            and space.split("::")[1] not in areas)
        if not is_public:
            continue
        if declaration.name not in public.get(space, ()) and declaration.name not in seen:
            seen.add(declaration.name)
            yield (declaration.line, f"{space}::{declaration.name} is declared in no public header",
                   f"move it into namespace {own}")
