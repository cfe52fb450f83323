#!/usr/bin/env python3
"""Writes reviews.jsonl: short made-up judgements of made-up things, 1 for praise and 0 for blame.

    python3 make_reviews.py > reviews.jsonl

Nobody wrote these reviews; they are put together from the lists below with a fixed seed, so that the
recipe bert-classify has something to learn from that ships with the repository. Denials ("not bad")
are among them, so that counting nice words is not enough.
"""
import json
import random

THINGS = ["film", "book", "meal", "hotel", "song", "play", "game", "lecture", "train ride", "garden",
          "museum", "phone", "chair", "novel", "concert", "bicycle", "lamp", "coat", "soup", "map"]
GOOD = ["wonderful", "a joy", "excellent", "brilliant", "charming", "first-rate", "delightful",
        "superb", "moving", "worth every penny", "a triumph", "better than I had hoped"]
BAD = ["dreadful", "a bore", "terrible", "a mess", "clumsy", "third-rate", "annoying", "awful",
       "lifeless", "a waste of money", "a disaster", "worse than I had feared"]
OPENINGS = ["The {} was {}.", "What a {}: {}!", "I found the {} {}.", "This {} is {}.",
            "My sister's verdict on the {}: {}.", "We thought the {} was {}.",
            "Honestly, the {} was {}.", "After all the talk, the {} turned out to be {}."]
DENIALS = ["The {} was not {}.", "I would not call the {} {}.", "Nobody could say that the {} was {}.",
           "The {} was anything but {}."]
GOOD_ENDS = ["I would go again.", "I will keep it.", "We smiled all the way home.", "Recommended.", ""]
BAD_ENDS = ["Never again.", "I gave it away.", "We left early.", "Avoid it.", ""]


def sentence(rng):
    praise = rng.random() < 0.45
    denied = rng.random() < 0.25
    words = GOOD if praise != denied else BAD
    text = rng.choice(DENIALS if denied else OPENINGS).format(rng.choice(THINGS), rng.choice(words))
    end = rng.choice(GOOD_ENDS if praise else BAD_ENDS)
    return {"text": (text + " " + end).strip(), "label": int(praise)}


def main():
    rng = random.Random(8)
    seen = set()
    while len(seen) < 400:
        review = sentence(rng)
        if review["text"] not in seen:
            seen.add(review["text"])
            print(json.dumps(review))


main()
