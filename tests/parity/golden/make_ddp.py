#!/usr/bin/env python3
"""Trains three small models under PyTorch's DistributedDataParallel and writes what came out, for
ddp_parity_test.cpp.

    python3 tests/parity/golden/make_ddp.py > tests/parity/golden/ddp.json

Needs PyTorch 2.11 (`pip install torch==2.11.0`); the test needs only the file. Models, first weights, data and
optimizers are written twice: here and in parity_models.cpp. Weights and data are a formula on integers, so that
no file has to hold them. One run per line: model, dtype and ranks; `losses`, for each rank those of all steps;
`hashes` of all parameters after some of the steps (FNV-1a over their bytes, as hash_parameters() does);
`values` of each parameter after these steps, 8 or fewer, evenly spaced, where bits may differ; `buffers`, for each
rank their hash at the end.

Bits. Libraries choose their kernels by the machine's CPU, and each kernel rounds in its own way. SAME_BITS
makes them choose what every x86-64 with AVX2 has; the test sets the same. oneDNN is off: its blocks follow the
sizes of the caches.
"""
import json
import os
import struct
import sys
import tempfile

SAME_BITS = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1"}
os.environ.update(SAME_BITS)  # before libtorch is loaded, here and in the ranks

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

NUM_STEPS = 50
RECORDED_STEPS = (1, 2, 3, 4, 5, 50)
NUM_SAMPLES = 60
BATCH_SIZE = 4  # of a rank
SAMPLER_SEED = 7
NUM_VALUES = 8
NUM_CLASSES = 5
VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS = 29, 8, 16, 2, 2


# ---- numbers from integers


def hashed(count, salt):
    """32 bits for each of count places."""
    mask = 0xFFFFFFFF
    x = (torch.arange(count, dtype=torch.int64) + salt * 1000003) & mask
    x = (x * 747796405 + 2891336453) & mask
    x = ((x ^ (x >> 15)) * 739982445) & mask
    x = ((x ^ (x >> 13)) * 695872825) & mask
    return x ^ (x >> 16)


def uniform(shape, salt):
    """Numbers in [-1, 1), all exact in float32."""
    count = torch.Size(shape).numel()
    return ((hashed(count, salt) >> 8).double() / 2**23 - 1).view(shape)


def initialise(model):
    with torch.no_grad():
        for salt, (name, parameter) in enumerate(model.named_parameters()):
            value = uniform(parameter.shape, salt)
            if parameter.dim() > 1:  # a weight: within the power of two below 1 / sqrt(inputs)
                bound = 1.0
                while bound * bound * (parameter.numel() // parameter.size(0)) > 1:
                    bound /= 2
                parameter.copy_(value * bound)
            else:
                parameter.copy_(value / 8 + (0 if name.endswith("bias") else 1))  # else a norm's weight


# ---- the models


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(12, 32)
        self.second = nn.Linear(32, 32)
        self.third = nn.Linear(32, NUM_CLASSES)

    def forward(self, x):
        return self.third(torch.tanh(self.second(torch.relu(self.first(x)))))


class Convnet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(16)
        self.decide = nn.Linear(16, NUM_CLASSES)

    def forward(self, x):
        x = F.max_pool2d(torch.relu(self.norm1(self.conv1(x))), 2)
        x = torch.relu(self.norm2(self.conv2(x)))
        return self.decide(x.mean((2, 3)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        # No bias: a key's has no influence, so its gradient is pure rounding, which AdamW blows up.
        self.attend = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.widen = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch = x.size(0)
        q, k, v = (part.view(batch, LENGTH, HEADS, WIDTH // HEADS).transpose(1, 2)
                   for part in self.attend(self.norm1(x)).chunk(3, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(y.transpose(1, 2).reshape(batch, LENGTH, WIDTH))
        return x + self.narrow(F.gelu(self.widen(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.place = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.token(tokens) + self.place(torch.arange(LENGTH))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)


# ---- data and optimizers


def dataset(name, dtype):
    if name == "transformer":
        tokens = hashed(NUM_SAMPLES * (LENGTH + 1), 1001).view(NUM_SAMPLES, LENGTH + 1) % VOCABULARY
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    shape = (NUM_SAMPLES, 12) if name == "mlp" else (NUM_SAMPLES, 3, 8, 8)
    return uniform(shape, 1001).to(dtype), hashed(NUM_SAMPLES, 1002) % NUM_CLASSES


class AdamW:
    """torch::optim::AdamW, operation by operation: Python's AdamW averages by lerp, C++'s does not."""

    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.first = [torch.zeros_like(p) for p in self.parameters]
        self.second = [torch.zeros_like(p) for p in self.parameters]
        self.step_number = 0
        self.lr, self.beta1, self.beta2, self.eps, self.decay = 1e-3, 0.9, 0.999, 1e-8, 1e-2

    @torch.no_grad()
    def step(self):
        self.step_number += 1
        correction1 = 1 - self.beta1**self.step_number
        correction2 = 1 - self.beta2**self.step_number
        for p, first, second in zip(self.parameters, self.first, self.second):
            p.mul_(1 - self.lr * self.decay)
            first.mul_(self.beta1).add_(p.grad, alpha=1 - self.beta1)
            second.mul_(self.beta2).addcmul_(p.grad, p.grad, value=1 - self.beta2)
            denominator = (second.sqrt() / correction2**0.5).add_(self.eps)
            p.addcdiv_(first, denominator, value=-(self.lr / correction1))

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None


def optimizer_of(name, parameters):
    if name == "transformer":
        return AdamW(parameters)
    decay = 1e-3 if name == "convnet" else 0
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=decay, foreach=False)


# ---- the run


def to_bytes(tensor):
    values = tensor.detach().flatten().tolist()
    letter = {torch.float32: "f", torch.float64: "d", torch.int64: "q"}[tensor.dtype]
    return struct.pack(f"<{len(values)}{letter}", *values)


def hash_of(tensors):
    hash = 0xCBF29CE484222325
    for tensor in tensors:
        for byte in to_bytes(tensor):
            hash = ((hash ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return hash


def number(value, dtype):
    return float(f"{value:.9g}") if dtype == torch.float32 else value  # enough digits for every bit


def values_of(parameter):
    flat = parameter.detach().flatten()
    stride = -(-flat.numel() // NUM_VALUES)
    return [number(v, parameter.dtype) for v in flat[::stride].tolist()]


def batches(name, dtype, rank, ranks):
    inputs, targets = dataset(name, dtype)
    sampler = DistributedSampler(range(NUM_SAMPLES), num_replicas=ranks, rank=rank, seed=SAMPLER_SEED)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        for rows in torch.tensor(list(sampler)).split(BATCH_SIZE):
            yield inputs[rows], targets[rows].flatten()
        epoch += 1


def train(name, dtype, rank, ranks):
    model = {"mlp": Mlp, "convnet": Convnet, "transformer": Transformer}[name]()
    initialise(model)
    model.to(dtype)
    ddp = DistributedDataParallel(model)
    optimizer = optimizer_of(name, model.parameters())
    losses, hashes, values = [], {}, {}
    for step, (inputs, targets) in zip(range(1, NUM_STEPS + 1), batches(name, dtype, rank, ranks)):
        optimizer.zero_grad()
        loss = F.cross_entropy(ddp(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(number(loss.item(), dtype))
        if step in RECORDED_STEPS:
            hashes[step] = hash_of(model.parameters())
            values[step] = [values_of(p) for p in model.parameters()]
    return {
        "model": name, "dtype": str(dtype).removeprefix("torch."), "ranks": ranks, "losses": losses,
        "hashes": hashes, "values": values, "buffers": hash_of(model.buffers()),
    }


def rank_main(rank, ranks, folder):
    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = False
    dist.init_process_group("gloo", init_method=f"file://{folder}/store-{ranks}", rank=rank, world_size=ranks)
    results = [train(name, dtype, rank, ranks)
               for name in ("mlp", "convnet", "transformer") for dtype in (torch.float32, torch.float64)]
    with open(f"{folder}/{ranks}-{rank}.json", "w", encoding="utf-8") as file:
        json.dump(results, file)
    dist.destroy_process_group()


def merged(of_ranks):
    """One run, from what its ranks saw."""
    result = dict(of_ranks[0])
    for of_rank in of_ranks:
        assert of_rank["hashes"] == result["hashes"], "PyTorch's ranks differ"
    result["losses"] = [of_rank["losses"] for of_rank in of_ranks]
    result["buffers"] = [of_rank["buffers"] for of_rank in of_ranks]
    if len(of_ranks) <= 2 and result["model"] != "transformer":
        del result["values"]  # bits are equal on every processor, which the hashes show
    return result


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def main():
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for ranks in (1, 2, 4):
            torch.multiprocessing.spawn(rank_main, (ranks, folder), nprocs=ranks)
            runs = zip(*(read(f"{folder}/{ranks}-{rank}.json") for rank in range(ranks)))
            lines += [json.dumps(merged(run), separators=(",", ":")) for run in runs]
    sys.stdout.write("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
