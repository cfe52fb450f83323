"""The peer of `lockstep bench load`: torch.load and load_state_dict, as a Python program does it.

    python load_peer.py FILE initialised|fresh

Says `ready` once torch is imported, or `absent` where there is none. Then, for each line on its
input, it makes a model, whose parameters are initialised or were never written to, and says `made`;
at the next line it loads FILE into it and answers with the start and the end on the monotonic clock
and the processor's time in between, in nanoseconds, and 0, or after the line `check` the CRC-32 of
all parameters. Ends with its input.
"""
import sys
import time
import zlib

try:
    import torch
except ImportError:
    print("absent", flush=True)
    sys.exit(0)


def new_model(state, make):
    """A module with parameters like those of `state`, each what `make` makes of one."""
    root = torch.nn.Module()
    for name, tensor in state.items():
        *path, leaf = name.split(".")
        module = root
        for part in path:
            if part not in module._modules:
                module.add_module(part, torch.nn.Module())
            module = module._modules[part]
        module.register_parameter(leaf, torch.nn.Parameter(make(tensor, device="cpu")))
    return root


def checksum(model):
    crc = 0
    for parameter in model.parameters():
        crc = zlib.crc32(memoryview(parameter.detach().view(torch.uint8).numpy()), crc)
    return crc


def main():
    path = sys.argv[1]
    make = torch.empty_like if sys.argv[2] == "fresh" else torch.ones_like
    torch.set_num_threads(1)
    print("ready", flush=True)
    while sys.stdin.readline():
        shapes = torch.load(path, weights_only=True, map_location="meta")
        model = new_model(shapes, make)
        del shapes
        print("made", flush=True)
        asked = sys.stdin.readline()
        start, used = time.monotonic_ns(), time.process_time_ns()
        model.load_state_dict(torch.load(path, weights_only=True))
        end, used = time.monotonic_ns(), time.process_time_ns() - used
        print(start, end, used, checksum(model) if asked == "check\n" else 0, flush=True)
        del model


main()
