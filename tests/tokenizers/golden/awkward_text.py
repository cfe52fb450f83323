"""Twenty thousand awkward texts, the same in tests/tokenizers/awkward_text.cpp: any change is made in both."""

NUM_TEXTS = 20000
MASK = (1 << 64) - 1

WORDS = ["the", "The", "and", "of", "training", "Distributed", "hello", "WORLD", "don't", "we'LL", "it's", "I'm",
         "they've", "café", "naïve", "Straße", "İstanbul", "Ångström", "ΣΊΣΥΦΟΣ", "ǅungla", "ﬁne", "x86_64", "v1.2.3",
         "3.14159", "1,000", "U+0041", "unaffable", "antidisestablishmentarianism", "#tag", "@you", "a_b-c$1.5",
         "http://example.org/?q=1&r=2", "中文", "日本語テキスト", "한국어", "русский", "हिन्दी", "ไทย", "עברית", "العربية"]
SPECIALS = ["[MASK]", "[CLS]", "[SEP]", "[UNK]", "[PAD]", "[mask]", "[MASK", "MASK]", "<|endoftext|>", "<|endoftext",
            "##ing", "<s>", "</s>", "##", "[unused1]", "newword", "NewWord", "@@", "<mask>", "é", "e\u0301"]
EMOJI = ["😀", "👩\u200d🔬", "🏳\ufe0f\u200d🌈", "👍🏽", "🇰🇷", "1\ufe0f\u20e3", "❤\ufe0f", "🧑🏿\u200d🤝\u200d🧑🏻", "\U0001fae8", "☺"]
SPACES = [" ", "  ", "\t", "\n", "\r\n", "\n\n", "\u00a0", "\u3000", "\u2003", "\u2028", "\u2029", "\u0085", "\u000b",
          "\u000c", "\u001c", "\u1680", "\u202f", "\u205f", "\u200b", "\ufeff", "\u180e", " \t ", "    "]
JUNK = [b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xc0\x80", b"\xc1\xbf", b"\xe0\x80\x80", b"\xe0\x9f\xbf", b"\xf0\x8f\xbf\xbf",
        b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xff", b"\xfe", b"\x80", b"\xbf", b"\xe4\xb8", b"\xf0\x9f\x98", b"\xc3",
        b"\xe2\x82", b"\xf0\x9f", b"\xed\xa0\xbd\xed\xb8\x80", b"\xef\xbf\xbd"]
MARKS = [(0x300, 0x36F), (0x591, 0x5BD), (0x610, 0x61A), (0x64B, 0x65F), (0x93C, 0x94D), (0x9BE, 0x9CD), (0xE31, 0xE3A),
         (0xF71, 0xF7E), (0x1DC0, 0x1DFF), (0x20D0, 0x20F0), (0x302A, 0x302F), (0x3099, 0x309A), (0xFE20, 0xFE2F),
         (0x1D165, 0x1D172), (0x1AB0, 0x1AC0), (0x16FF0, 0x16FF1), (0x338, 0x338), (0x345, 0x345)]
BASES = [(0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x17F), (0x386, 0x3CE), (0x1EA0, 0x1EF9), (0x1F00, 0x1FFE), (0x30, 0x39),
         (0x3C, 0x3E), (0x410, 0x44F), (0x4E00, 0x4E20), (0x304B, 0x30DB), (0xAC00, 0xAC40), (0x1100, 0x1112), (0x1161, 0x1175)]
CHINESE = [(0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF), (0x2A700, 0x2CEAF), (0x2F800, 0x2FA1F),
           (0x3000, 0x303F), (0x3040, 0x30FF), (0xFF00, 0xFFEF), (0x2E80, 0x2FDF)]
HANGUL = [(0xAC00, 0xD7A3), (0xAC00, 0xD7A3), (0x1100, 0x11FF), (0x3130, 0x318F), (0xA960, 0xA97F), (0xD7B0, 0xD7FF)]
RIGHT_TO_LEFT = [(0x590, 0x5FF), (0x600, 0x6FF), (0x700, 0x7FF), (0x8A0, 0x8FF), (0xFB1D, 0xFDFF), (0xFE70, 0xFEFF),
                 (0x200E, 0x200F), (0x202A, 0x202E), (0x10E80, 0x10EBF), (0x1E900, 0x1E95F)]
CONTROLS = [(0x00, 0x1F), (0x7F, 0x9F), (0xAD, 0xAD), (0x200B, 0x200F), (0x2028, 0x202E), (0x2060, 0x206F), (0xFEFF, 0xFEFF),
            (0xFFF9, 0xFFFD), (0xE000, 0xE010), (0xE0001, 0xE007F), (0x110BD, 0x110BD), (0x61, 0x64)]
DIGITS = [(0x30, 0x39), (0x660, 0x669), (0x966, 0x96F), (0xB2, 0xB3), (0x2160, 0x2188), (0x2460, 0x249B), (0xFF10, 0xFF19),
          (0x1D7CE, 0x1D7FF), (0x3007, 0x3007), (0x16EA0, 0x16ED3), (0x27, 0x27), (0x61, 0x7A), (0x20, 0x20)]


class Dice:
    def __init__(self, seed):
        self.state = seed & MASK

    def below(self, limit):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        return (z ^ z >> 31) % limit


def utf8(point):
    return chr(point).encode()


def one_of(dice, texts):
    text = texts[dice.below(len(texts))]
    return text if isinstance(text, bytes) else text.encode()


def point_in(dice, ranges):
    first, last = ranges[dice.below(len(ranges))]
    return utf8(first + dice.below(last - first + 1))


def any_point(dice):
    point = dice.below(0x110000 - 0x800)
    return utf8(point if point < 0xD800 else point + 0x800)


def some(dice, most, make):
    return b"".join(make() for _ in range(1 + dice.below(most)))


def spaced(dice, most, make):
    return some(dice, most, lambda: make() + (one_of(dice, SPACES) if dice.below(4) == 0 else b" "))


def marked(dice):
    return point_in(dice, BASES) + (some(dice, 4, lambda: point_in(dice, MARKS)) if dice.below(3) else b"")


def mutated(dice):
    data = bytearray(spaced(dice, 6, lambda: one_of(dice, WORDS)))
    for _ in range(1 + dice.below(4)):
        at = dice.below(len(data))
        data[at] = dice.below(256)
    return bytes(data)


def block(dice):
    page = dice.below(0x110000 // 64)
    page = page if not 0xD800 <= page * 64 < 0xE000 else 4
    return some(dice, 12, lambda: utf8(page * 64 + dice.below(64)) + (b"a" if dice.below(3) == 0 else b""))


def long_word(dice):
    letters = some(dice, 3, lambda: point_in(dice, BASES))
    return (letters * 150)[:2 * (90 + dice.below(30))] + one_of(dice, SPACES) + b"x" * (95 + dice.below(10))


def text_bytes(index):
    dice = Dice(index * 0x9E3779B97F4A7C15 + 1)
    kinds = [
        lambda: spaced(dice, 12, lambda: one_of(dice, WORDS)),
        lambda: some(dice, 24, lambda: any_point(dice)),
        lambda: block(dice),
        lambda: some(dice, 20, lambda: point_in(dice, CHINESE) if dice.below(3) else one_of(dice, WORDS)),
        lambda: some(dice, 20, lambda: point_in(dice, HANGUL)),
        lambda: some(dice, 12, lambda: marked(dice)),
        lambda: some(dice, 20, lambda: point_in(dice, RIGHT_TO_LEFT)),
        lambda: some(dice, 8, lambda: one_of(dice, EMOJI) if dice.below(3) else one_of(dice, WORDS)),
        lambda: some(dice, 20, lambda: point_in(dice, CONTROLS)),
        lambda: some(dice, 10, lambda: one_of(dice, WORDS) + some(dice, 3, lambda: one_of(dice, SPACES))),
        lambda: some(dice, 8, lambda: one_of(dice, SPECIALS) + (one_of(dice, SPACES) if dice.below(2) else b"")
                     + (one_of(dice, WORDS) if dice.below(2) else b"")),
        lambda: long_word(dice),
        lambda: some(dice, 30, lambda: bytes([dice.below(256)])),
        lambda: mutated(dice),
        lambda: some(dice, 8, lambda: one_of(dice, JUNK) + (one_of(dice, WORDS) if dice.below(2) else b"")),
        lambda: some(dice, 24, lambda: point_in(dice, DIGITS)),
    ]
    return kinds[index % len(kinds)]()
