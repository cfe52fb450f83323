#!/usr/bin/env python3
"""Trains MyTransformer in PyTorch as `lockstep train` does and writes the losses as a golden.

    python3 mytransformer_train.py LOCKSTEP > ../train/goldens/mytransformer.json

LOCKSTEP is the program; the first weights are taken from it (a run whose learning rate is 0, exported).
Data, order, schedule, clipping and AdamW are written anew here, from what docs/concepts/train.md
promises. Run it from the root of the repository.
"""
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file
from torch.utils.data.distributed import DistributedSampler

STEPS, BATCH, TIME, LR, WARMUP, FLOOR, SEED = 80, 16, 64, 0.003, 10, 0.1, 1
SETTINGS = {"model.hidden_size": 64, "model.num_layers": 2, "model.ffn_size": 128, "model.dropout": 0.0,
            "model.max_positions": TIME, "data.sequence_length": TIME, "train.batch_size": BATCH,
            "train.lr": LR, "train.warmup_steps": WARMUP, "train.max_steps": STEPS}


def first_weights(program):
    with tempfile.TemporaryDirectory() as folder:
        settings = SETTINGS | {"train.lr": 0.0, "train.max_steps": 1, "checkpoint.dir": folder + "/run"}
        flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        subprocess.run([program, "train", "recipes/mytransformer.toml", "--json", *flags], check=True,
                       stdout=subprocess.DEVNULL)
        subprocess.run([program, "eval", folder + "/run", "--export", folder + "/first.safetensors"],
                       check=True, stdout=subprocess.DEVNULL)
        return load_file(folder + "/first.safetensors")


class MyTransformer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(256, 64)
        self.positions = torch.nn.Embedding(TIME, 64)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(64, 4, 128, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(2))
        self.norm = torch.nn.LayerNorm(64)
        self.fc = torch.nn.Linear(64, 256)

    def forward(self, ids):
        time = ids.shape[1]
        x = self.embedding(ids) + self.positions(torch.arange(time))
        mask = torch.nn.Transformer.generate_square_subsequent_mask(time)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.fc(self.norm(x))


def loss_of(model, ids):
    logits = model(ids)
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def rate(step):
    if step < WARMUP:
        return LR * (step + 1) / WARMUP
    done = min(1.0, (step - WARMUP) / max(STEPS - WARMUP - 1, 1))
    return LR * (FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * done)))


def main():
    text = pathlib.Path("recipes/data/handbook.txt").read_bytes()
    samples = torch.tensor(list(text[:len(text) // TIME * TIME])).reshape(-1, TIME)
    held_out = math.ceil(len(samples) * 0.1)
    train, held_out = samples[:-held_out], samples[-held_out:]
    model = MyTransformer()
    model.load_state_dict(first_weights(sys.argv[1]))
    groups = [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.01},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR)
    sampler = DistributedSampler(train, 1, 0, shuffle=True, seed=SEED, drop_last=True)
    losses, epoch = [], 0
    while len(losses) < STEPS:
        sampler.set_epoch(epoch)
        order = list(sampler)
        for begin in range(0, len(order) // BATCH * BATCH, BATCH):
            if len(losses) == STEPS:
                break
            for group in optimizer.param_groups:
                group["lr"] = rate(len(losses))
            loss = loss_of(model, train[order[begin:begin + BATCH]])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        epoch += 1
    model.eval()
    with torch.no_grad():
        judged = sum(loss_of(model, held_out[i:i + 1]).item() for i in range(len(held_out))) / len(held_out)
    json.dump({"settings": SETTINGS, "torch": torch.__version__, "losses": losses, "held_out_loss": judged},
              sys.stdout)
    print()


main()
