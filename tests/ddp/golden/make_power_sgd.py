#!/usr/bin/env python3
"""Writes power_sgd.txt beside this file: what PyTorch's powerSGD_hook makes of known gradients.

    python3 tests/ddp/golden/make_power_sgd.py     # needs torch 2.11

Three ranks over Gloo, float64, rank 2, error feedback, warm start; 2 plain steps, then 6 compressed
ones. Gradients and the first Q follow formulas that tests/ddp/power_sgd_state_test.cpp repeats.
A line: the step, the parameter's number, its gradient after the hook.
"""
import os
import sys
import tempfile
import types
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd

WORLD = 3
SHAPES = [(8, 10), (5,), (6, 2, 4), (3, 3)]
STEPS = range(8)
KEPT = (1, 2, 3, 7)


def gradient(rank, step, parameter):
    shape = SHAPES[parameter]
    counts = torch.arange(torch.Size(shape).numel(), dtype=torch.float64).view(shape)
    phase = counts * (0.37 * (parameter + 1)) * (1 + 0.05 * rank) + 0.013 * counts * counts
    return torch.sin(phase + 1.3 * step + 0.7 * rank)


def first_q(_, rows, columns, **kwargs):
    i = torch.arange(rows, dtype=torch.float64).view(rows, 1)
    j = torch.arange(columns, dtype=torch.float64).view(1, columns)
    return torch.sin(1 + 0.9 * i * (j + 1) + 0.1 * rows).unsqueeze(0)


class NoRandom:
    """Stands for numpy.random.RandomState, from which the hook draws seeds that first_q ignores."""

    def __init__(self, _):
        pass

    def randint(self, _):
        return 0


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.ParameterList(
            torch.nn.Parameter(torch.zeros(shape, dtype=torch.float64)) for shape in SHAPES)

    def forward(self, gradients):
        return sum((w * g).sum() for w, g in zip(self.weights, gradients))


def run(rank, store, out):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    model = Model()
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    sys.modules["numpy"] = types.SimpleNamespace(random=types.SimpleNamespace(RandomState=NoRandom))
    state = power_sgd.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2,
                                    min_compression_rate=1.5)
    ddp.register_comm_hook(state, power_sgd.powerSGD_hook)
    torch.randn = first_q
    lines = []
    for step in STEPS:
        model.zero_grad()
        ddp([gradient(rank, step, i) for i in range(len(SHAPES))]).backward()
        if step in KEPT:
            for i, weight in enumerate(model.weights):
                values = " ".join(f"{value:.14g}" for value in weight.grad.flatten().tolist())
                lines.append(f"{step} {i} {values}\n")
    if rank == 0:
        Path(out).write_text("".join(lines))
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, (os.path.join(folder, "store"), str(Path(__file__).with_name("power_sgd.txt"))),
                 nprocs=WORLD)
