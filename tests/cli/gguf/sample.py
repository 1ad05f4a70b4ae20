# SPDX-License-Identifier: MIT
"""The sample model as a GGUF file, as llama.cpp's converter would write it."""
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parents[2] / "unit/model/parity"))
from gguf_files import LAYER, OUTSIDE, add_sizes, finish, place_of

KIND = gguf.GGMLQuantizationType


def tensor_name(name):
    if name in OUTSIDE:
        return OUTSIDE[name]
    layer, part, kind = place_of(name)
    return f"blk.{layer}.{LAYER[part]}.{kind}"


def add_tokenizer(writer, tokenizer):
    added = {token["content"] for token in tokenizer["added_tokens"]}
    names = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    names |= {id: token for token, id in tokenizer["model"]["vocab"].items()}
    tokens = [names[id] for id in sorted(names)]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if token in added else gguf.TokenType.NORMAL for token in tokens])
    writer.add_token_merges(merges)


def write_sample(path, model, kind=KIND.BF16, architecture="qwen3", tokenizer=True, more=(), metadata=(), parts=1, part=1):
    """model: the checkpoint's folder. more: further tensors by name; metadata: (key, value, gguf.GGUFValueType) in the place of
    what the tokenizer has. The file, or one part of it."""
    config, weights = json.loads((model / "config.json").read_text()), {}
    for file in sorted(model.glob("*.safetensors")):
        weights |= load_file(file)
    writer = gguf.GGUFWriter(path, architecture)
    add_sizes(writer, SimpleNamespace(**config))
    writer.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
    if tokenizer:
        add_tokenizer(writer, json.loads((model / "tokenizer.json").read_text(encoding="utf-8")))
    for key, value, kind_of_value in metadata:
        writer.kv_data[0].pop(key, None)
        writer.add_key_value(key, value, kind_of_value)
    tensors = {tensor_name(name): weight.to(torch.float32).numpy() for name, weight in weights.items()} | dict(more)
    for i, (name, values) in enumerate(tensors.items()):
        own = KIND.F32 if values.ndim == 1 or values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] else kind
        if i % parts == part - 1:
            writer.add_tensor(name, gguf.quants.quantize(numpy.ascontiguousarray(values), own), raw_dtype=own)
    finish(writer, part, parts)
    return path
