#!/usr/bin/env python3
"""Writes what Hugging Face tokenizers make of awkward texts, for tokenizer_parity_test.cpp.

    pip install tokenizers==0.23.3
    python3 make_tokenizers.py            hashes.txt, points.txt, cases.json
    python3 make_tokenizers.py --train    also cased/ and bpe/, from the docs of this repository

uncased/vocab.txt is that of bert-base-uncased (THIRD_PARTY.md). The tokenizers are described in cases.json as
tokenizer.json would describe them, without their vocabularies.
"""
import json
import sys
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from awkward_text import NUM_TEXTS, text_bytes

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[3]
BERT_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def train():
    texts = [p.read_text() for p in sorted((ROOT / "docs").rglob("*.md"))]
    texts += [text_bytes(i).decode(errors="replace") for i in range(0, NUM_TEXTS, 3)]
    cased = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    cased.normalizer = normalizers.BertNormalizer(lowercase=False)
    cased.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    cased.train_from_iterator(texts, trainers.WordPieceTrainer(
        vocab_size=7000, limit_alphabet=2000, special_tokens=BERT_SPECIALS, show_progress=False))
    folder = HERE / "cased"
    folder.mkdir(exist_ok=True)
    vocab = sorted(cased.get_vocab().items(), key=lambda item: item[1])
    (folder / "vocab.txt").write_text("".join(token + "\n" for token, _ in vocab))
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}\n')

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=5000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    folder = HERE / "bpe"
    folder.mkdir(exist_ok=True)
    bpe.add_special_tokens(["<|endoftext|>"])
    (folder / "vocab.json").write_text(json.dumps(bpe.get_vocab(), ensure_ascii=False, sort_keys=True))
    merges = json.loads(bpe.to_str())["model"]["merges"]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))


def bert(folder, normalizer):
    lines = (HERE / folder / "vocab.txt").read_text().split("\n")[:-1]
    tokenizer = Tokenizer(models.WordPiece({token: i for i, token in enumerate(lines)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(t, tokenizer.token_to_id(t)) for t in ("[CLS]", "[SEP]")])
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in BERT_SPECIALS])
    return tokenizer


def bpe(add_prefix_space):
    tokenizer = Tokenizer(models.BPE.from_file(str(HERE / "bpe/vocab.json"), str(HERE / "bpe/merges.txt")))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    return tokenizer


def tokenizers():
    """Name -> tokenizer. The first three are also read from the files in their folders."""
    found = {
        "uncased": bert("uncased", normalizers.BertNormalizer(lowercase=True)),
        "cased": bert("cased", normalizers.BertNormalizer(lowercase=False)),
        "bpe": bpe(False),
    }
    # Added tokens of every kind, some of them searched in normalized text.
    added = bert("uncased", normalizers.BertNormalizer(lowercase=True))
    added.add_tokens([AddedToken("NewWord"), AddedToken("unaffable", single_word=True), AddedToken("É"),
                      AddedToken("@@", lstrip=True, normalized=False), AddedToken("<s>", rstrip=True, normalized=False),
                      AddedToken("</s>", lstrip=True, rstrip=True), AddedToken("ing", single_word=True, normalized=False)])
    found["added"] = added
    # Steps that are no BertNormalizer, and nothing is cleaned.
    found["steps"] = bert("cased", normalizers.Sequence(
        [normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()]))
    found["composed"] = bert("cased", normalizers.Sequence(
        [normalizers.NFC(), normalizers.BertNormalizer(lowercase=False, strip_accents=True, handle_chinese_chars=False)]))
    # As RoBERTa, over NFC.
    roberta = bpe(True)
    roberta.normalizer = normalizers.NFC()
    roberta.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True, normalized=False)])
    roberta.add_tokens([AddedToken("<s>"), AddedToken("</s>"), AddedToken("e\u0301")])
    roberta.post_processor = processors.RobertaProcessing(
        ("</s>", roberta.token_to_id("</s>")), ("<s>", roberta.token_to_id("<s>")))
    found["roberta"] = roberta
    return found


class Hash:
    """FNV-1a of 64 bits."""

    def __init__(self):
        self.value = 0xCBF29CE484222325

    def add(self, data):
        for byte in data:
            self.value = (self.value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF

    def add_ids(self, ids):
        self.add(b"".join(i.to_bytes(4, "little") for i in ids) + b"\xff\xff\xff\xff")

    def __str__(self):
        return f"{self.value >> 32 ^ self.value & 0xFFFFFFFF:08x}"


def write_hashes(found):
    """A line for each 10 texts: for each tokenizer the hashes of their ids and of what the ids decode to."""
    lines = ["# " + " ".join(found)]
    for begin in range(0, NUM_TEXTS, 10):
        texts = [text_bytes(i).decode(errors="replace") for i in range(begin, begin + 10)]
        columns = []
        for tokenizer in found.values():
            ids, decoded = Hash(), Hash()
            for text in texts:
                encoded = tokenizer.encode(text).ids
                ids.add_ids(encoded)
                decoded.add(tokenizer.decode(encoded, skip_special_tokens=False).encode() + b"\xff")
            columns.append(f"{ids} {decoded}")
        lines.append(" ".join(columns))
    (HERE / "hashes.txt").write_text("\n".join(lines) + "\n")


def write_points():
    """A line for each 2048 code points: what each step makes of them, and where words are cut."""
    steps = [normalizers.BertNormalizer(lowercase=True), normalizers.BertNormalizer(lowercase=False),
             normalizers.BertNormalizer(lowercase=True, strip_accents=False), normalizers.NFD(), normalizers.NFC(),
             normalizers.StripAccents(), normalizers.Lowercase()]
    cuts = [pre_tokenizers.BertPreTokenizer(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    lines = ["# bert-uncased bert-cased bert-lowercase nfd nfc strip-accents lowercase words pieces"]
    for begin in range(0, 0x110000, 2048):
        hashes = [Hash() for _ in steps + cuts]
        for point in range(begin, begin + 2048):
            if 0xD800 <= point < 0xE000:
                continue
            text = f"a{chr(point)}\u0300b {chr(point)}1"
            for step, value in zip(steps, hashes):
                value.add(step.normalize_str(text).encode() + b"\xff")
            for cut, value in zip(cuts, hashes[len(steps):]):
                value.add_ids(begin for piece in cut.pre_tokenize_str(text) for begin in piece[1])
        lines.append(" ".join(map(str, hashes)))
    (HERE / "points.txt").write_text("\n".join(lines) + "\n")


TEXTS = ["", " ", "Hello, world! don't stop.", "Héllo WÖRLD İstanbul ÅΣς ß", "北京ab 日本語テキスト 한국어", "a_b-c$1.5 x86_64",
         "I'm  here,  123abc\n\n x!! ", "we'LL don't", " \t\n a", "😀👩\u200d🔬 🏳\ufe0f\u200d🌈", "a\u0000b\ufffdc\u200bd",
         "x" * 101, "The [MASK] of [mask] <|endoftext|>tail", "NewWord newword NEWWORD unaffables unaffable @@ <s>  x </s> sing ing",
         "e\u0301\u0323 é q\u0307\u0323", "\u1e9b\u0323 \u212b \uac00\u11a8 \u1100\u1161\u11a8"]
PAIRS = [("How are you?", "Fine."), ("", "second"), ("one two three four five six", "a b c d e f g h i j"), ("a b c", "d e f")]


def write_cases(found):
    cases = []

    def case(name, text, second=None, max_length=0, special=True):
        tokenizer = found[name]
        tokenizer.no_truncation()
        if max_length:
            tokenizer.enable_truncation(max_length)
        encoding = tokenizer.encode(text, second, add_special_tokens=special)
        cases.append({"tokenizer": name, "text": text, "pair": second, "max_length": max_length, "special": special,
                      "ids": encoding.ids, "type_ids": encoding.type_ids, "decoded": tokenizer.decode(encoding.ids)})

    for name in found:
        for text in TEXTS:
            case(name, text)
        for first, second in PAIRS:
            for max_length in (0, 5, 8, 11):
                case(name, first, second, max_length)
        case(name, TEXTS[2], special=False)
        case(name, TEXTS[2], max_length=4)
        case(name, TEXTS[2], "Fine.", 7, False)
        found[name].no_truncation()
    descriptions = {}
    for name, tokenizer in found.items():
        description = json.loads(tokenizer.to_str())
        del description["model"]["vocab"]
        description["model"].pop("merges", None)
        descriptions[name] = description
    (HERE / "cases.json").write_text(json.dumps({"tokenizers": descriptions, "cases": cases}, separators=(",", ":")) + "\n")


def main():
    if "--train" in sys.argv:
        train()
    found = tokenizers()
    write_cases(found)
    write_hashes(found)
    write_points()


if __name__ == "__main__":
    main()
