#!/usr/bin/env python3
"""Asks Hugging Face tokenizers what it thinks of every code point and writes src/tokenizers/unicode_tables.cpp.

    pip install tokenizers==0.23.3
    tools/make_unicode_tables.py > src/tokenizers/unicode_tables.cpp        (a minute)

Its parts come from different versions of Unicode (docs/concepts/tokenizers.md), so no Unicode library has
its answers; equal ids need equal tables. Every table is checked against the library before it is printed.
"""
import sys
import unicodedata

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from tokenizers import __version__ as VERSION

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
HANGUL = range(0xAC00, 0xD7A4)


def bert(**options):
    off = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
    return normalizers.BertNormalizer(**(off | options)).normalize_str


def members(test):
    return {c for c in CODE_POINTS if test(chr(c))}


def changed(function):
    return {c: function(chr(c)) for c in CODE_POINTS if function(chr(c)) != chr(c)}


def joins(text):
    """Code points that GPT-2's expression keeps in one piece with `text` on both sides."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    return members(lambda c: len(split(text + c + text)) == 1)


def word_characters():
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.add_tokens([AddedToken("@@", single_word=True, normalized=False)])
    return members(lambda c: tokenizer.encode(c + "@@").ids != [0, 1]) - {ord("@")}


def combining_classes(nfd):
    """Canonical combining classes, from the order that NFD gives two marks."""
    def stays(text):
        return nfd(text) == text

    # Behind a 240 and before a 1 only a starter stays, or what the library does not know yet.
    marks = [chr(c) for c in CODE_POINTS if stays(chr(c)) and
             not (stays("a\u0345" + chr(c)) and stays("a" + chr(c) + "\u0334"))]
    ladder = {}
    for mark in marks:
        ladder.setdefault(unicodedata.combining(mark), mark)
    classes = {}
    for mark in marks:
        # Both orders stay only among equals.
        found = [k for k, other in ladder.items() if stays("a" + mark + other) and stays("a" + other + mark)]
        assert len(found) == 1 and found[0] > 0, hex(ord(mark))
        classes[ord(mark)] = found[0]
    return classes


def decompositions(nfd):
    """Code point -> (first, second or 0): Unicode never changes these, so Python's are the library's."""
    found = {}
    for c in CODE_POINTS:
        if c in HANGUL or nfd(chr(c)) == chr(c):
            continue
        parts = [int(x, 16) for x in unicodedata.decomposition(chr(c)).split()]
        found[c] = tuple(parts) if len(parts) == 2 else (parts[0], 0)

    def expand(c):
        first, second = found.get(c, (c, 0))
        return [c] if c not in found else expand(first) + (expand(second) if second else [])

    for c in found:
        assert "".join(map(chr, expand(c))) == nfd(chr(c)), hex(c)
    return found


def runs(flags):
    """(length, value) over all code points."""
    out, start = [], 0
    for c in range(1, 0x110001):
        if c == 0x110000 or flags[c] != flags[start]:
            out += [c - start, flags[start]]
            start = c
    return out


def mapped_runs(table):
    """(gap from the last, number, stride, delta) for code points mapped by one delta."""
    out, last, keys = [], 0, sorted(table)
    while keys:
        first, delta = keys[0], table[keys[0]] - keys[0]
        stride = 2 if first + 1 not in table and table.get(first + 2, -1) - first - 2 == delta else 1
        number = 1
        while table.get(first + stride * number, -1) - first - stride * number == delta:
            number += 1
        taken = {first + stride * i for i in range(number)}
        keys = [c for c in keys if c not in taken]
        out += [first - last, number, stride, delta]
        last = first
    return out


def array(kind, name, numbers, comment):
    print(f"\n// {comment}\nconst {kind} {name}[] = {{")
    line = "    "
    for number in numbers:
        if len(line) + len(str(number)) + 1 > 100:
            print(line)
            line = "    "
        line += f"{number},"
    print(line + "\n};")
    print(f"const size_t {name}Size = {len(numbers)};")


def main():
    nfd, nfc = normalizers.NFD().normalize_str, normalizers.NFC().normalize_str
    split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    clean, strip = bert(clean_text=True), bert(strip_accents=True)
    strip_all = normalizers.StripAccents().normalize_str
    bits = [
        joins("a"),                                             # Letter
        joins("1"),                                             # Number
        members(lambda c: split("a" + c + "a") == [("a", (0, 1)), ("a", (2, 3))]),  # Space
        members(lambda c: len(split("a" + c + "a")) == 3),      # Punctuation
        members(lambda c: strip("a" + c + "b") == "ab"),        # NonSpacing
        members(lambda c: clean("a" + c + "b") == "ab"),        # Control
        word_characters(),                                      # Word
        members(lambda c: strip_all("a" + c + "b") == "ab"),    # Mark
    ]
    flags = [0] * 0x110000
    for bit, points in enumerate(bits):
        for c in points:
            flags[c] |= 1 << bit
    flags.append(-1)
    chinese = members(lambda c: bert(handle_chinese_chars=True)(c) != c)
    chinese_runs = runs([int(c in chinese) for c in range(0x110001)])
    ranges, start = [], 0
    for length, inside in zip(chinese_runs[::2], chinese_runs[1::2]):
        ranges += [start, start + length - 1] if inside else []
        start += length

    classes = combining_classes(nfd)
    marks, last = [], 0
    for c in sorted(classes):
        if marks and c == last and classes[c] == marks[-1]:
            marks[-2] += 1
        else:
            marks += [c - last, 1, classes[c]]
        last = c + 1
    splits = decompositions(nfd)
    triples, last = [], 0
    for c in sorted(splits):
        triples += [c - last, *splits[c]]
        last = c
    apart = [c for c in sorted(splits) if splits[c][1] and nfc(nfd(chr(c))) != chr(c)]
    lower = changed(normalizers.Lowercase().normalize_str)
    assert lower.pop(0x130) == "i\u0307" and all(len(v) == 1 for v in lower.values())

    print(f"// Written by tools/make_unicode_tables.py from tokenizers {VERSION}; do not edit.\n")
    print('#include "data/unicode_tables.h"\n\n// clang-format off\nnamespace lockstep {')
    array("uint32_t", "kClassRuns", runs(flags), "Length and classes of each run of code points, from 0 on.")
    array("uint32_t", "kChineseRanges", ranges, "First and last of what BERT puts spaces around.")
    array("uint32_t", "kCombiningRuns", marks, "Gap, length, canonical combining class.")
    array("uint32_t", "kDecompositions", triples, "Step to the code point, its first part, its second or 0.")
    array("uint32_t", "kNeverComposed", apart, "Decomposed, and never composed again.")
    array("int32_t", "kLowerRuns", mapped_runs({c: ord(v) for c, v in lower.items()}),
          "Gap from the last first, number, stride, what to add; U+0130 is not here.")
    print("\n}  // namespace lockstep")


if __name__ == "__main__":
    sys.exit(main())
