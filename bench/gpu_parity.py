#!/usr/bin/env python3
"""Trains in PyTorch what `lockstep bench gpu-parity` trains, and says how far the losses are apart.

    bench/gpu_parity.py --lockstep build/release/bin/lockstep     on a machine with a GPU
    bench/gpu_parity.py --lockstep ... --device cpu --steps 10    the same comparison without one

lockstep writes its first parameters, its batches and its losses (`--dump`). The models are built here from torch.nn
and transformers, which share no code with lockstep's; they take those parameters, see those batches and train at the
same settings: float32 without TF32, no dropout, SGD at 0.01, deterministic kernels. Prints one line of JSON:

    device, steps, torch, transformers
    cases[]   model, first_loss, last_loss (PyTorch's), and max_loss_difference_to_pytorch, the largest relative
              difference of a step's loss

Exit code: 0; 1 if a loss is further away than --limit or a program failed.
"""
import argparse
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

LEARNING_RATE = 0.01
LIMIT = 1e-4
MODELS = ("mlp", "convnet", "mytransformer", "bert")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA begins; deterministic sums need it


def make_mlp(torch):
    """Six layers of 1024 with ReLU between them."""
    nn = torch.nn

    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(6))

        def forward(self, x):
            for number, layer in enumerate(self.layers):
                x = layer(x if number == 0 else torch.relu(x))
            return x

    return Mlp(), lambda module, x: module(x)


def make_convnet(torch):
    """The network of recipes/cats.toml for pictures of 32 x 32."""
    nn = torch.nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(3, 16, 3, stride=2, padding=1)
            self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
            self.conv3 = nn.Conv2d(32, 48, 3, padding=1)
            self.hidden = nn.Linear(48 * 4 * 4, 32)
            self.decide = nn.Linear(32, 2)

        def forward(self, pictures):
            rectify = nn.LeakyReLU(0.1)
            pool = nn.MaxPool2d(2)
            x = rectify(self.conv1(pictures * 2 - 1))
            x = pool(rectify(self.conv2(x)))
            x = pool(rectify(self.conv3(x)))
            return self.decide(rectify(self.hidden(x.flatten(1))))

    return torch.nn.ModuleDict({"net": Net()}), lambda module, x: module["net"](x)


def make_mytransformer(torch):
    """Four pre-norm layers of torch.nn's own kind with a causal mask, without positions."""
    nn = torch.nn

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(3000, 128)
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(128, 8, dim_feedforward=512, dropout=0, activation="gelu", norm_first=True,
                                           batch_first=True) for _ in range(4))
            self.norm = nn.LayerNorm(128)
            self.fc = nn.Linear(128, 3000)

        def forward(self, tokens):
            mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
            x = self.embedding(tokens)
            for layer in self.layers:
                x = layer(x, src_mask=mask, is_causal=True)
            return self.fc(self.norm(x)).flatten(0, 1)

    return torch.nn.ModuleDict({"transformer": Transformer()}), lambda module, x: module["transformer"](x)


def make_bert(torch):
    """transformers' classifier, of 4 layers of width 256."""
    import transformers

    config = transformers.BertConfig(vocab_size=3000, hidden_size=256, num_hidden_layers=4, num_attention_heads=8,
                                     intermediate_size=1024, max_position_embeddings=64, num_labels=4,
                                     hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = transformers.BertForSequenceClassification(config)
    return torch.nn.ModuleDict({"bert": model}), lambda module, x: module["bert"](input_ids=x).logits


def make_model(torch, name):
    """The module, whose parameters have lockstep's names, and how to call it."""
    return {"mlp": make_mlp, "convnet": make_convnet, "mytransformer": make_mytransformer, "bert": make_bert}[name](torch)


def ask_for_exact_kernels(torch):
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


def train(torch, name, tensors, device):
    """The loss of each step."""
    module, call = make_model(torch, name)
    first = {key.removeprefix("initial."): value for key, value in tensors.items() if key.startswith("initial.")}
    module.load_state_dict(first)  # strict: a name that only one side has is an error
    module.to(device).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE)
    losses = []
    for inputs, targets in zip(tensors["inputs"], tensors["targets"]):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(call(module, inputs.to(device)), targets.to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def largest_difference(losses, reference):
    """Relative to the reference; infinite for what is no number."""
    differences = [abs(a - b) / abs(b) for a, b in zip(losses, reference, strict=True)]
    return max(x if math.isfinite(x) else math.inf for x in differences)


def run_lockstep(options, folder):
    command = [*shlex.split(options.lockstep), "bench", "gpu-parity", "--ranks", "1", "--steps", str(options.steps),
               "--models", options.models, "--device", options.device, "--json", "--dump", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"gpu_parity: {shlex.join(command)} failed with {done.returncode}:\n{done.stderr[-4000:]}")


def compare(options, folder):
    import safetensors.torch
    import torch
    import transformers

    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("gpu_parity: PyTorch finds no GPU; --device cpu compares on the CPU")
    ask_for_exact_kernels(torch)
    result = {"device": options.device, "steps": options.steps, "torch": torch.__version__,
              "transformers": transformers.__version__, "cases": []}
    for name in options.models.split(","):
        tensors = safetensors.torch.load_file(folder / f"{name}.safetensors")
        losses = train(torch, name, tensors, options.device)
        difference = largest_difference(tensors["losses"].tolist(), losses)
        result["cases"].append({"model": name, "max_loss_difference_to_pytorch": difference,
                                "first_loss": losses[0], "last_loss": losses[-1]})
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lockstep", default="build/release/bin/lockstep", help="the program, with what starts it")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--limit", type=float, default=LIMIT, help="how far losses may be apart (default: %(default)s)")
    options = parser.parse_args()
    if unknown := set(options.models.split(",")) - set(MODELS):
        parser.error(f"--models {','.join(sorted(unknown))}: there are {', '.join(MODELS)}")
    with tempfile.TemporaryDirectory(prefix="lockstep-parity-") as folder:
        run_lockstep(options, folder)
        result = compare(options, Path(folder))
    print(json.dumps(result))
    return 0 if all(x["max_loss_difference_to_pytorch"] <= options.limit for x in result["cases"]) else 1


if __name__ == "__main__":
    sys.exit(main())
