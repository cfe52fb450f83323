#!/usr/bin/env python3
"""Makes the files beside it. Needs torch 2.11.0, numpy and safetensors 0.8.0:

    tests/formats/goldens/make_goldens.py
"""
from pathlib import Path

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


if __name__ == "__main__":
    safetensors()
