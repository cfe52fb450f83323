#!/usr/bin/env python3
"""The short job of `lockstep bench launch`, as a Python user writes it.

    torchrun --standalone --nproc-per-node 8 bench/ddp_job.py

The same 26 steps of the same model as lockstep-bench's (apps/bench/launch/bench_launch_job.cpp):
both print the same losses.
"""
import os
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

NUM_STEPS = 26
PATIENCE_S = 300  # a rank whose launcher was killed ends by itself


def main():
    signal.alarm(PATIENCE_S)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + rank)
    inputs = torch.randn(8, 64)
    targets = torch.arange(8)
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(ddp(inputs), targets)
        loss.backward()
        optimizer.step()
    # The newline in the same write: torchrun's Python is unbuffered, and all ranks share one pipe.
    print(f"rank {rank}: {NUM_STEPS} steps, loss {loss.item():.6f}\n", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
