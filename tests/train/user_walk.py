#!/usr/bin/env python3
"""Opens a folder that `lockstep eval --export` wrote and compares what transformers makes of it with what lockstep
said: user_walk.py SAID.json, as tests/train/user_walk_python_test.cpp writes it. Exits with 1 and a sentence where
they differ.
"""
import json
import sys

import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

LIMIT = 1e-5


def check(is_true, *what):
    if not is_true:
        sys.exit(" ".join(str(part) for part in what))


def check_near(ours, theirs, what):
    difference = (torch.tensor(ours, dtype=torch.float64) - theirs.double()).abs().max().item()
    print(f"{what}: largest difference {difference:.1e}")
    check(difference <= LIMIT, what, "differ: lockstep", ours, "transformers", theirs.tolist())


def load(kind, folder):
    model, report = kind.from_pretrained(folder, output_loading_info=True)
    check(not report["missing_keys"] and not report["mismatched_keys"], "weights are missing:", report)
    if kind is not AutoModel:
        check(not report["unexpected_keys"], "weights too many:", report)
    return model.eval()


def classifier(said):
    tokenizer = AutoTokenizer.from_pretrained(said["folder"])
    model = load(AutoModelForSequenceClassification, said["folder"])
    body = load(AutoModel, said["folder"])
    check(model.config.problem_type == "single_label_classification", "problem_type", model.config.problem_type)
    for one in said["texts"]:
        inputs = tokenizer(one["text"], return_tensors="pt", truncation=True, max_length=16)
        logits = model(**inputs).logits[0]
        check_near(one["log_probabilities"], logits.log_softmax(0), f"logits of {one['text']!r}")
        label = model.config.id2label[logits.argmax().item()]
        check(label == one["label"], "lockstep says", one["label"], "transformers", label)
        vector = body(**inputs).last_hidden_state[0].mean(0)
        check_near(one["embedding"], torch.nn.functional.normalize(vector, dim=0), f"vector of {one['text']!r}")
    # All at once: padding is not seen.
    inputs = tokenizer([one["text"] for one in said["texts"]], return_tensors="pt", padding=True, truncation=True,
                       max_length=16)
    check_near([one["log_probabilities"] for one in said["texts"]], model(**inputs).logits.log_softmax(1),
               "logits of a padded batch")


def language(said):
    tokenizer = AutoTokenizer.from_pretrained(said["folder"])
    model = load(AutoModelForCausalLM, said["folder"])
    ids = tokenizer(said["text"], return_tensors="pt").input_ids
    rows = ids[:, :ids.size(1) // said["sequence_length"] * said["sequence_length"]].reshape(-1, said["sequence_length"])
    check(rows[:, 1:].numel() == said["counted"], "lockstep counted", said["counted"], "tokens of", ids.tolist())
    check(tokenizer.decode(ids[0]) == said["text"], "decoded:", tokenizer.decode(ids[0]))
    check_near(said["loss"], model(input_ids=rows, labels=rows).loss, "loss")
    prompt = tokenizer(said["prompt"], return_tensors="pt")
    out = model.generate(**prompt, max_new_tokens=said["num_tokens"], do_sample=False, pad_token_id=0)
    check(tokenizer.decode(out[0]) == said["generated"], "lockstep wrote", repr(said["generated"]), "transformers",
          repr(tokenizer.decode(out[0])))
    check(model.config.eos_token_id == said["end"], "eos_token_id", model.config.eos_token_id)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        said = json.load(file)
    with torch.no_grad():
        {"classifier": classifier, "language": language}[said["kind"]](said)


if __name__ == "__main__":
    main()
