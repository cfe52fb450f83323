#!/usr/bin/env python3
"""Writes what PyTorch's DistributedSampler deals, for distributed_sampler_test.cpp.

    python3 tests/data/golden/make_distributed_sampler.py > tests/data/golden/distributed_sampler.json

Needs PyTorch 2.11 (`pip install torch==2.11.0`); the test needs only the file. Always writes the same.
One case per line: the options, `size`, and `indices`; of a list of more than 12 its `head` and `tail` of 4
each, and `hash`: from 0xcbf29ce484222325, for each index: hash = (hash ^ index) * 0x100000001b3 mod 2^64.
"""
import itertools
import json

from torch.utils.data.distributed import DistributedSampler

WHOLE = 12
ENDS = 4


def digest(indices):
    hash = 0xCBF29CE484222325
    for index in indices:
        hash = ((hash ^ index) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return hash


def case(num_samples, num_ranks, rank, seed, epoch, drop_last, shuffle=True):
    sampler = DistributedSampler(
        range(num_samples), num_replicas=num_ranks, rank=rank, shuffle=shuffle, seed=seed, drop_last=drop_last)
    sampler.set_epoch(epoch)
    indices = list(sampler)
    result = {
        "num_samples": num_samples, "num_ranks": num_ranks, "rank": rank, "seed": seed, "epoch": epoch,
        "drop_last": drop_last, "shuffle": shuffle, "size": len(indices),
    }
    if len(indices) <= WHOLE:
        result["indices"] = indices
    else:
        result.update(head=indices[:ENDS], tail=indices[-ENDS:], hash=digest(indices))
    return result


def cases():
    # Every way in which samples and ranks can fit or not: fewer, equal, a multiple, one more, one less.
    seeds = itertools.cycle([0, 1, 42, 2**31 - 1, 2**32, 123456789012345])
    epochs = itertools.cycle([0, 1, 2, 7, 1000])
    for num_ranks in (1, 2, 3, 4, 7, 8, 64):
        for num_samples in sorted({1, 2, 3, num_ranks - 1, num_ranks, num_ranks + 1, 5 * num_ranks - 1,
                                   5 * num_ranks, 5 * num_ranks + 1, 1001} - {0}):
            for drop_last in (False, True):
                rank = (num_samples * 31 + num_ranks) % num_ranks
                for r in sorted({rank, num_ranks - 1}):
                    yield case(num_samples, num_ranks, r, next(seeds), next(epochs), drop_last)
    for num_samples, num_ranks, drop_last in itertools.product((1, 10, 103), (1, 4, 9), (False, True)):
        yield case(num_samples, num_ranks, num_ranks // 2, 3, 5, drop_last, shuffle=False)
    for seed in (2**31, 2**32 - 1, 2**32 + 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 8):
        for epoch in (0, 7):
            yield case(100, 3, 1, seed, epoch, False)
    # Around the 64 places and the 624 draws after which a shuffle goes on to its next block.
    for num_samples in (63, 64, 65, 66, 128, 129, 130, 623, 624, 625, 626, 1249):
        yield case(num_samples, 1, 0, 11, 3, False)
    for num_samples, num_ranks, drop_last in ((65536, 8, False), (1000003, 3, False), (1000003, 64, True),
                                              (1281167, 256, False), (2500000, 1, False)):
        yield case(num_samples, num_ranks, num_ranks - 1, 7, 9, drop_last)


def main():
    lines = [json.dumps(entry) for entry in cases()]
    print("[\n" + ",\n".join(lines) + "\n]")


if __name__ == "__main__":
    main()
