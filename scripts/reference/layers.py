# SPDX-License-Identifier: MIT
"""Reads the layers of a dump, layer_<id>/{q,k,v,seq_lens}/<chunk>.safetensors or .pt, and rounds as servers do."""
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

WARM_UP_TOKENS = 16  # a chunk 0 of at most so many tokens is a server's warm-up


class Layer(NamedTuple):
    """Rows of one layer, post-RoPE, float32 as read. Sequences are (begin, end) tokens that attend to each other."""
    q: np.ndarray  # (T, Hq, d)
    k: np.ndarray  # (T, Hkv, d)
    v: np.ndarray  # (T, Hkv, d)
    sequences: list

    @property
    def kv_heads(self):
        return self.k.shape[1]

    @property
    def queries_per_head(self):
        return self.q.shape[1] // self.k.shape[1]

    def queries_of(self, head):
        """All queries that read KV head `head`, (T, g, d), fp64."""
        g = self.queries_per_head
        return self.q[:, head * g:(head + 1) * g].astype(np.float64)


def layer_folders(dump):
    """{layer id: folder}, ascending."""
    found = {int(path.name[6:]): path for path in Path(dump).glob("layer_*")}
    if not found:
        raise SystemExit(f"{dump}: has no layer_* folder")
    return dict(sorted(found.items()))


def read_tensors(path):
    """{name: array} of a .safetensors file."""
    data = path.read_bytes()
    begin, tensors = 8 + int.from_bytes(data[:8], "little"), {}
    for name, entry in json.loads(data[8:begin]).items():
        if name == "__metadata__":
            continue
        kind = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I32": "<i4"}[entry["dtype"]]
        first, last = entry["data_offsets"]
        numbers = np.frombuffer(data[begin + first:begin + last], kind).reshape(entry["shape"])
        tensors[name] = (numbers.astype(np.uint32) << 16).view(np.float32) if entry["dtype"] == "BF16" else numbers
    return tensors


def read_safetensors(path):
    """The one tensor of a file."""
    (tensor,) = read_tensors(path).values()
    return tensor


def read_pt(path):
    import torch  # takes seconds, and is needed for this format only
    tensor = torch.load(path, weights_only=True)
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()


def read_layer(folder):
    reader, suffix = (read_pt, ".pt") if any((folder / "q").glob("*.pt")) else (read_safetensors, ".safetensors")
    read = lambda what, chunk: reader(folder / what / f"{chunk}{suffix}")
    chunks = sorted(int(path.stem) for path in (folder / "q").glob("*" + suffix))
    if len(chunks) > 1 and chunks[0] == 0 and len(read("q", 0)) <= WARM_UP_TOKENS:
        chunks = chunks[1:]
    q, k, v, lengths = (np.concatenate([read(what, chunk) for chunk in chunks]) for what in ("q", "k", "v", "seq_lens"))
    ends = np.cumsum(lengths)
    return Layer(*(x.astype(np.float32) for x in (q, k, v)),
                 [(int(end - length), int(end)) for length, end in zip(lengths, ends)])


def to_bf16(x):
    """Nearest bfloat16, ties to even, as float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) & np.uint32(0xFFFF0000)).view(np.float32)


def to_f32(x):
    return np.asarray(x, np.float32)
