#!/usr/bin/env python3
"""The peer of `lockstep bench tokenize`: Hugging Face tokenizers on the same texts, on one thread.

    tokenize_peer.py VOCABULARY TEXT     a folder or a tokenizer.json; texts, each ended by a zero byte

Encodes all texts once to warm up and says `ready`. Then, for each line on its input, it encodes them again and writes
one line, the seconds of CPU time that this took and the number of ids, and then the ids as int32, each text's ended by
-1. Ends with its input.
"""
import array
import json
import os
import sys
import time
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers  # noqa: E402


def from_vocabulary(folder):
    """As transformers makes them of the files of BERT and GPT-2."""
    config = {}
    if (folder / "tokenizer_config.json").is_file():
        config = json.loads((folder / "tokenizer_config.json").read_text())
    if (folder / "vocab.txt").is_file():
        lines = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
        vocabulary = {token: i for i, token in enumerate(lines) if token}
        tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(
            lowercase=config.get("do_lower_case", True), strip_accents=config.get("strip_accents"),
            handle_chinese_chars=config.get("tokenize_chinese_chars", True))
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    else:
        tokenizer = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=config.get("add_prefix_space", False))
        specials = ["<|endoftext|>"]
    known = [token for token in specials if tokenizer.token_to_id(token) is not None]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in known])
    return tokenizer


def load(path):
    if path.is_dir() and not (path / "tokenizer.json").is_file():
        return from_vocabulary(path)
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json" if path.is_dir() else path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def main():
    tokenizer = load(Path(sys.argv[1]))
    texts = Path(sys.argv[2]).read_bytes().decode("utf-8", errors="replace").split("\0")[:-1]
    tokenizer.encode_batch_fast(texts, add_special_tokens=False)  # warm
    print("ready", flush=True)
    while sys.stdin.readline():
        begin = time.process_time()
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        seconds = time.process_time() - begin
        ids = array.array("i")
        for encoding in encodings:
            ids.extend(encoding.ids)
            ids.append(-1)
        del encodings
        sys.stdout.buffer.write(f"{seconds:.9f} {len(ids)}\n".encode() + ids.tobytes())
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
