# SPDX-License-Identifier: MIT
"""Writes a model as the checkpoint that is published of its kind: sharded floats, or quantised as its name says."""
import json
import re

import torch
from safetensors.torch import load_file, save_file

BLOCK = 128
FLOAT8_LARGEST = 448.0
FLOAT4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
LINEAR = re.compile(r"(proj|projection|\.w[123])\.weight$")


def float8_blocks(weight, height, width):
    """(float8, scales, what they stand for), one scale per block of height x width."""
    rows, columns = weight.shape
    scales = torch.zeros(-(-rows // height), -(-columns // width))
    stored, plain = torch.empty(weight.shape, dtype=torch.float8_e4m3fn), torch.empty_like(weight)
    for i, top in enumerate(range(0, rows, height)):
        for j, left in enumerate(range(0, columns, width)):
            block = slice(top, top + height), slice(left, left + width)
            scales[i, j] = weight[block].abs().max() / FLOAT8_LARGEST
            stored[block] = (weight[block] / scales[i, j]).to(torch.float8_e4m3fn)
            plain[block] = stored[block].float() * scales[i, j]
    return stored, scales, plain


def to_float8(kind, tensors):
    stored, plain = {}, {}
    for name, weight in tensors.items():
        stored[name] = plain[name] = weight
        if not LINEAR.search(name):
            continue
        if kind == "blocks":
            stored[name], stored[f"{name}_scale_inv"], plain[name] = float8_blocks(weight, BLOCK, BLOCK)
        elif kind == "rows":
            stored[name], stored[f"{name}_scale"], plain[name] = float8_blocks(weight, 1, weight.shape[1])
        else:
            stored[name], scale, plain[name] = float8_blocks(weight, *weight.shape)
            stored[f"{name}_scale"] = scale.reshape(())
    return stored, plain


def to_mxfp4(tensors):
    """Experts (count, in, out) as blocks of 32 inputs: two codes a byte, low nibble first, and an exponent."""
    stored, plain = {}, {}
    for name, weight in tensors.items():
        stored[name] = plain[name] = weight
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            continue
        blocks = weight.transpose(1, 2).unflatten(-1, (-1, 32))
        exponent = torch.floor(torch.log2(blocks.abs().amax(-1))) - 2
        scaled = blocks / torch.exp2(exponent).unsqueeze(-1)
        codes = (scaled.unsqueeze(-1) - FLOAT4).abs().argmin(-1)
        del stored[name]
        stored[f"{name}_blocks"] = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
        stored[f"{name}_scales"] = (exponent + 127).to(torch.uint8)
        values = FLOAT4[codes] * torch.exp2(exponent).unsqueeze(-1)
        plain[name] = values.flatten(-2).transpose(1, 2).contiguous()
    return stored, plain


def by_input(tensors):
    """Stacks of experts as (in, out)."""
    return {name: tensor.transpose(1, 2).contiguous() if ".experts." in name else tensor
            for name, tensor in tensors.items()}, tensors


def float8_stacks(tensors):
    """Stacks of experts as float8_e5m2, with an exponent for each expert."""
    stored, plain = dict(tensors), dict(tensors)
    for name, stack in tensors.items():
        if ".experts." in name:
            scale = torch.exp2(torch.ceil(torch.log2(stack.abs().amax((1, 2), keepdim=True) / FLOAT8_LARGEST)))
            stored[name] = (stack / scale).to(torch.float8_e5m2)
            stored[f"{name}_scale_inv"], plain[name] = scale.to(torch.float8_e8m0fnu), stored[name].float() * scale
    return stored, plain


QUANTIZED = {
    "fp8stacks": (float8_stacks, {"quant_method": "fp8"}),
    "byinput": (by_input, None),
    "fp8": (lambda tensors: to_float8("blocks", tensors),
            {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK], "fmt": "e4m3"}),
    "fp8tensor": (lambda tensors: to_float8("tensor", tensors), {"quant_method": "fp8"}),
    "fp8rows": (lambda tensors: to_float8("rows", tensors),
                {"quant_method": "compressed-tensors", "format": "float-quantized"}),
    "mxfp4": (to_mxfp4, {"quant_method": "mxfp4"}),
}


def write(folder, tensors, config):
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))


def publish(name, model, folder):
    """Writes the checkpoint and returns the model that it stands for."""
    kind = name.rpartition("-")[2]
    if kind not in QUANTIZED:
        model.save_pretrained(folder, max_shard_size="200KB")
        return model
    quantize, description = QUANTIZED[kind]
    whole = folder / "whole"
    model.save_pretrained(whole)
    config = json.loads((whole / "config.json").read_text())
    stored, plain = quantize(load_file(whole / "model.safetensors"))
    write(folder, stored, config if description is None else {**config, "quantization_config": description})
    write(whole, plain, config)
    return type(model).from_pretrained(whole, attn_implementation="eager", dtype=torch.float32).eval()
