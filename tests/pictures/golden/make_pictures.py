#!/usr/bin/env python3
"""Writes pictures and what torchvision makes of them, for tests/data/image_data_test.cpp.

    pip install torch==2.11.0 torchvision==0.26.0 pillow numpy
    python make_pictures.py

CLASS/NAME.jpg and .png, and NAME.npy: Resize(64), CenterCrop(56), ToTensor, Normalize, float32 [3, 56, 56].
"""
from pathlib import Path

import numpy as np
from PIL import Image
from torchvision import transforms

HERE = Path(__file__).parent
SIZES = {"small": (160, 120), "tall": (90, 200), "large": (640, 480)}  # the last is decoded at a quarter


def picture(width, height, seed):
    """Smooth colours, finer and finer."""
    random = np.random.default_rng(seed)
    result = np.full((height, width, 3), 128, np.float32)
    for grain, strength in ((40, 60), (12, 30), (5, 10)):
        for c in range(3):
            points = random.normal(0, strength, (height // grain + 2, width // grain + 2)).astype(np.float32)
            result[..., c] += np.asarray(Image.fromarray(points).resize((width, height), Image.BICUBIC))
    return Image.fromarray(np.clip(result, 0, 255).astype(np.uint8))


def main():
    transform = transforms.Compose([
        transforms.Resize(64), transforms.CenterCrop(56), transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])
    (HERE / "files").mkdir(exist_ok=True)
    for seed, (name, size) in enumerate(SIZES.items()):
        for kind in ("jpg", "png"):
            if kind == "png" and name == "large":
                continue
            path = HERE / "files" / f"{name}.{kind}"
            picture(*size, seed).save(path, quality=85)
            np.save(HERE / f"{name}_{kind}.npy", transform(Image.open(path).convert("RGB")).numpy())


if __name__ == "__main__":
    main()
