#!/usr/bin/env python3
"""Makes the files beside it. Needs torch 2.11.0, numpy and safetensors 0.8.0:

    tests/formats/goldens/make_goldens.py
"""
from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

HERE = Path(__file__).resolve().parent


def safetensors():
    save_file(
        {
            "weight": torch.arange(6, dtype=torch.float32).reshape(2, 3),
            "ids": torch.tensor([7, -1]),
            "scalar": torch.tensor(3.5),
            "half": torch.ones(3, dtype=torch.bfloat16),
        },
        HERE / "small.safetensors",
        metadata={"format": "pt"},
    )


def state_dict():
    """What a small model with tied weights, a view and several types is saved as."""
    embedding = torch.arange(12, dtype=torch.float32).reshape(4, 3)
    table = torch.arange(10, dtype=torch.float32)
    state = OrderedDict(
        [
            ("wte.weight", embedding),
            ("ln.bias", torch.tensor([0.5, -0.5], dtype=torch.bfloat16)),
            ("steps", torch.tensor(7)),
            ("mask", torch.tensor([True, False])),
            ("transposed", torch.arange(6, dtype=torch.float16).reshape(2, 3).t()),
            ("view", table[4:6]),
            ("empty", torch.empty(0, 3)),
            ("lm_head.weight", embedding),
            ("ids", torch.tensor([65535, 1], dtype=torch.uint16)),
            ("fp8", torch.tensor([1.0, -2.0]).to(torch.float8_e4m3fn)),
        ]
    )
    state._metadata = OrderedDict([("", {"version": 1})])
    return state


def checkpoint():
    """A trainer's file: nested, with an optimizer, scalars and what else torch may write."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "step": 3,
        "seed": 2**63 + 5,
        "big": 2**40,
        "loss": 0.25,
        "flags": (True, None, -1, 300, 70000),
        "shape": torch.Size([2, 3]),
        "device": torch.device("cuda", 1),
        "dtype": torch.bfloat16,
        "tags": {"only"},
        "raw": b"\x00\xffab",
        "rng": torch.arange(4, dtype=torch.uint8),
    }


def torch_zips():
    torch.manual_seed(42)
    torch.save(state_dict(), HERE / "state_dict.pth")
    torch.save(checkpoint(), HERE / "checkpoint.pth")
    torch.save(state_dict(), HERE / "legacy.pth", _use_new_zipfile_serialization=False)
    torch.serialization.set_crc32_options(False)
    torch.save({"w": torch.arange(3.0)}, HERE / "no_crc.pth")
    torch.serialization.set_crc32_options(True)


def numpy_arrays():
    np.save(HERE / "array.npy", np.arange(6, dtype=np.float32).reshape(2, 3))
    np.savez(
        HERE / "arrays.npz",
        ids=np.array([7, -1]),
        fortran=np.asfortranarray(np.arange(6, dtype=np.float16).reshape(2, 3)),
        scalar=np.array(3.5),
    )


if __name__ == "__main__":
    safetensors()
    torch_zips()
    numpy_arrays()
