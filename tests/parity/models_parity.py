#!/usr/bin/env python3
"""Full-size models with random weights: Python (transformers, torchvision) and lockstep compute the same
logits and gradients, and each loads what the other saved.

    python3 tests/parity/models_parity.py build/release/bin/model_parity [--all] [name ...]

Prints the largest difference of each model's outputs and gradients, in units of the tensor's largest
number, and exits with 1 if one is more than 1e-5. Without names the models that take little memory are
compared, with --all every one: GPT-2 xl takes 40 GB. Needs torch, transformers 5, torchvision, safetensors.
"""
import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torchvision
import transformers
from safetensors.torch import load_file, save_file

LIMIT = 1e-5
VOCAB = 30522


def text_inputs(batch=2, time=48):
    ids = torch.randint(1, VOCAB, (batch, time))
    mask = torch.ones_like(ids)
    mask[1, time - 9:] = 0
    types = (torch.arange(time) > time // 2).long().expand(batch, time).contiguous()
    return {"ids": ids * mask, "attention_mask": mask, "token_types": types}


def run_bert(model, inputs):
    return model(input_ids=inputs["ids"], attention_mask=inputs["attention_mask"],
                 token_type_ids=inputs["token_types"])


def cross_entropy(logits, labels):
    return torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


def masked_lm(model):
    inputs = text_inputs()
    inputs["labels"] = torch.where(torch.rand(inputs["ids"].shape) < 0.15, inputs["ids"], -100)
    inputs["labels"][0, 3] = 5
    logits = run_bert(model, inputs).logits
    return inputs, {"logits": logits}, cross_entropy(logits, inputs["labels"])


def classify(model):
    inputs = text_inputs()
    inputs["labels"] = torch.tensor([1, 0])
    logits = run_bert(model, inputs).logits
    return inputs, {"logits": logits}, cross_entropy(logits, inputs["labels"])


def embed(model):
    inputs = text_inputs()
    output = run_bert(model, inputs)
    hidden, pooled = output.last_hidden_state, output.pooler_output
    inputs |= {"probe_hidden": torch.randn_like(hidden), "probe_pooled": torch.randn_like(pooled)}
    loss = (hidden * inputs["probe_hidden"]).mean() + (pooled * inputs["probe_pooled"]).mean()
    return inputs, {"hidden": hidden, "pooled": pooled}, loss


def next_token(model):
    ids = torch.randint(VOCAB, (2, 48))
    output = model(input_ids=ids, labels=ids)
    return {"ids": ids, "labels": ids.clone()}, {"logits": output.logits}, output.loss


def pictures(model):
    inputs = {"pictures": torch.randn(2, 3, 224, 224), "labels": torch.tensor([3, 700])}
    logits = model(inputs["pictures"])
    return inputs, {"logits": logits}, cross_entropy(logits, inputs["labels"])


def gpt2(width, layers, heads):
    return lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=width, n_layer=layers, n_head=heads))


def bert(kind):
    return lambda: kind(transformers.BertConfig(num_labels=2))


MODELS = {
    "bert-base-mlm": (bert(transformers.BertForMaskedLM), masked_lm),
    "bert-base-classify": (bert(transformers.BertForSequenceClassification), classify),
    "bert-base": (bert(transformers.BertModel), embed),
    "gpt2": (gpt2(768, 12, 12), next_token),
    "resnet18": (torchvision.models.resnet18, pictures),
    "resnet50": (torchvision.models.resnet50, pictures),
}
LARGER_MODELS = {
    "gpt2-medium": (gpt2(1024, 24, 16), next_token),
    "gpt2-large": (gpt2(1280, 36, 20), next_token),
    "gpt2-xl": (gpt2(1600, 48, 25), next_token),
    "resnet34": (torchvision.models.resnet34, pictures),
    "resnet101": (torchvision.models.resnet101, pictures),
    "resnet152": (torchvision.models.resnet152, pictures),
}
ALL_MODELS = MODELS | LARGER_MODELS


def difference(ours, theirs):
    unit = max(theirs.abs().max().item(), 1e-3)
    return (ours.double() - theirs.double()).abs().max().item() / unit


def load_again(model, folder):
    """What lockstep saved, as Python loads it: the same bits as the model it came from."""
    if isinstance(model, transformers.PreTrainedModel):
        again, report = type(model).from_pretrained(folder, output_loading_info=True)
        assert not report["missing_keys"] and not report["unexpected_keys"], report
    else:
        again = type(model)(type(model.layer1[0]), [len(stage) for stage in (model.layer1, model.layer2, model.layer3,
                                                                           model.layer4)])
        again.load_state_dict(torch.load(folder / "state.pth", weights_only=True))
    state = model.state_dict()
    return all(torch.equal(value, state[name]) for name, value in again.state_dict().items())


def compare(program, name, folder):
    make, compute = ALL_MODELS[name]
    torch.manual_seed(11)
    model = make().eval()
    inputs, outputs, loss = compute(model)
    loss.backward()
    weights = folder / "theirs"
    if isinstance(model, transformers.PreTrainedModel):
        model.save_pretrained(weights)
    else:
        weights = folder / "theirs.pth"
        torch.save(model.state_dict(), weights)
    save_file({f"input.{key}": value.contiguous() for key, value in inputs.items()}, folder / "in.safetensors")
    subprocess.run([program, weights, folder / "in.safetensors", folder / "out.safetensors", folder / "ours"],
                   check=True)
    results = load_file(folder / "out.safetensors")
    of_outputs = max(difference(results[f"output.{key}"], value.detach()) for key, value in outputs.items())
    of_gradients = max(difference(results[f"grad.{key}"], parameter.grad)
                       for key, parameter in model.named_parameters())
    same = load_again(model, folder / "ours")
    print(f"{name:20} {difference(results['loss'], loss.detach()):10.2e} {of_outputs:10.2e} {of_gradients:10.2e}   "
          f"{'same bits' if same else 'OTHER BITS'}", flush=True)
    return max(of_outputs, of_gradients) <= LIMIT and same


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(ALL_MODELS)}")
    parser.add_argument("--all", action="store_true", help="the larger ones too")
    arguments = parser.parse_args()
    print(f"{'model':20} {'loss':>10} {'outputs':>10} {'gradients':>10}   saved by lockstep, loaded by Python")
    good = True
    for name in arguments.names or (ALL_MODELS if arguments.all else MODELS):
        with tempfile.TemporaryDirectory() as folder:
            good &= compare(arguments.program.resolve(), name, Path(folder))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
