#!/usr/bin/env python3
"""Makes the files beside it. Needs torch 2.11.0, numpy and safetensors 0.8.0:

    tests/formats/goldens/make_goldens.py
"""
import hashlib
import io
import json
import pickle
import struct
import tarfile
import tempfile
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


def add_member(tar, name, data):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def tar_of_old_torch():
    """torch < 0.1.10 wrote a tar; 2.11 still reads it. Here it is put together by hand, the bytes of
    the storages by torch itself, and read back by torch's own code."""
    classes = {torch.float32: (torch.FloatStorage, torch.FloatTensor),
               torch.float16: (torch.HalfStorage, torch.HalfTensor),
               torch.int64: (torch.LongStorage, torch.LongTensor)}
    state = {name: tensor for name, tensor in state_dict().items() if tensor.dtype in classes}
    keys = {}  # data_ptr -> key of the storage
    with tempfile.TemporaryDirectory() as folder:
        storages, tensors = Path(folder, "storages"), Path(folder, "tensors")
        roots = {tensor.untyped_storage().data_ptr(): tensor for tensor in state.values()}
        with open(storages, "wb", 0) as f:
            pickle.dump(len(roots), f, protocol=2)
            for pointer, tensor in roots.items():
                keys[pointer] = 94000000000000 + len(keys)
                pickle.dump((keys[pointer], "cpu", classes[tensor.dtype][0]), f, protocol=2)
                tensor.untyped_storage()._write_file(f, True, True, tensor.element_size())
            # A storage that is the end of the first one.
            first = next(iter(keys.values()))
            pickle.dump([(1, first, 3, 9)], f, protocol=2)
        ids = {}
        with open(tensors, "wb", 0) as f:
            pickle.dump(len(state) + 1, f, protocol=2)
            for name, tensor in state.items():
                ids[name] = 95000000000000 + len(ids)
                storage = keys[tensor.untyped_storage().data_ptr()]
                pickle.dump((ids[name], storage, classes[tensor.dtype][1]), f, protocol=2)
                f.write(struct.pack("<ii", tensor.dim(), 0))
                f.write(struct.pack(f"<{tensor.dim()}q", *tensor.size()))
                f.write(struct.pack(f"<{tensor.dim()}q", *tensor.stride()))
                f.write(struct.pack("<q", tensor.storage_offset()))
            pickle.dump((2, 1, torch.FloatTensor), f, protocol=2)
            f.write(struct.pack("<iiqqq", 1, 0, 2, 1, 1))

        class Pickler(pickle.Pickler):
            def persistent_id(self, value):
                return value[0] if isinstance(value, list) else None

        root = io.BytesIO()
        named = OrderedDict((name, [ids[name]]) for name in state)
        named["of_view"] = ["2"]
        Pickler(root, protocol=2).dump(named)
        system = {"protocol_version": 1000, "little_endian": True,
                  "type_sizes": {"short": 2, "int": 4, "long": 4}}
        with tarfile.open(HERE / "tar.pth", "w:", format=tarfile.PAX_FORMAT) as tar:
            add_member(tar, "sys_info", pickle.dumps(system, protocol=2))
            add_member(tar, "pickle", root.getvalue())
            add_member(tar, "tensors", tensors.read_bytes())
            add_member(tar, "storages", storages.read_bytes())
    loaded = torch.load(HERE / "tar.pth", weights_only=False)
    for name, tensor in state.items():
        assert torch.equal(loaded[name], tensor), name
    assert loaded["of_view"].tolist() == [4, 5]


def legacy_views():
    """Old torch could save a storage that lies in another; 2.11 still reads it."""

    base = torch.arange(10, dtype=torch.float32)
    with open(HERE / "legacy_view.pth", "wb") as f:
        pickle.dump(torch.serialization.MAGIC_NUMBER, f, protocol=2)
        pickle.dump(torch.serialization.PROTOCOL_VERSION, f, protocol=2)
        pickle.dump({"protocol_version": 1001, "little_endian": True, "type_sizes": {}}, f,
                    protocol=2)

        class Pickler(pickle.Pickler):
            def persistent_id(self, value):
                return value if isinstance(value, tuple) and value[:1] == ("storage",) else None

        class Rebuilt:
            def __init__(self, *arguments):
                self.arguments = arguments

            def __reduce__(self):
                return torch._utils._rebuild_tensor_v2, self.arguments

        whole = ("storage", torch.FloatStorage, "100", "cpu", 10, None)
        part = ("storage", torch.FloatStorage, "100", "cpu", 10, ("101", 4, 5))
        Pickler(f, protocol=2).dump(OrderedDict(
            whole=Rebuilt(whole, 0, (10,), (1,), False, OrderedDict()),
            part=Rebuilt(part, 1, (2, 2), (2, 1), False, OrderedDict()),
        ))
        pickle.dump(["100"], f, protocol=2)
        f.flush()
        base.untyped_storage()._write_file(f, True, True, 4)
    loaded = torch.load(HERE / "legacy_view.pth", weights_only=True)
    assert loaded["part"].tolist() == [[5, 6], [7, 8]]


def numpy_arrays():
    np.save(HERE / "array.npy", np.arange(6, dtype=np.float32).reshape(2, 3))
    np.savez(
        HERE / "arrays.npz",
        ids=np.array([7, -1]),
        fortran=np.asfortranarray(np.arange(6, dtype=np.float16).reshape(2, 3)),
        scalar=np.array(3.5),
    )
    np.savez_compressed(
        HERE / "deflated.npz",
        ids=np.array([7, -1]),
        fortran=np.asfortranarray(np.arange(6, dtype=np.float16).reshape(2, 3)),
        scalar=np.array(3.5),
        zeros=np.zeros((100, 100), np.float32),
    )


def others():
    """What sha256sum, llm.c and transformers write."""
    digest = hashlib.sha256((HERE / "array.npy").read_bytes()).hexdigest()
    (HERE / "x.sha256").write_text(f"{digest}  x\n")
    header = np.zeros(256, dtype=np.int32)
    header[:3] = 20240520, 1, 3
    tokens = np.array([1, 50256, 7], dtype=np.uint16)
    (HERE / "tokens.bin").write_bytes(header.tobytes() + tokens.tobytes())
    index = {"metadata": {"total_size": 24}, "weight_map": {"a": "one.bin", "b": "two.bin"}}
    (HERE / "small.index.json").write_text(json.dumps(index, indent=2))


if __name__ == "__main__":
    safetensors()
    torch_zips()
    tar_of_old_torch()
    legacy_views()
    numpy_arrays()
    others()
