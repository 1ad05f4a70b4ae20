# SPDX-License-Identifier: MIT
"""oscar_kv's attention backend of vLLM on a GPU without vLLM: vllm_replay.py [--record FILE.pt=SET ...] [--speed] [--out FILE.json]

Record: what vllm_record.py wrote of a real server on the CPU. Its steps are replayed on the GPU, on caches of vLLM's own layout, by
kernels and by torch; outputs are compared with the server's. Exit status 1 if they differ by more than 2 %.
Speed: a layer's decode steps of a batch at Qwen3-8B's shape through the backend (queries transformed, new rows packed, all read,
outputs transformed back), each step as Python makes it and as a CUDA graph, beside torch's attention over bfloat16 rows alone.
"""
import argparse
import contextlib
import json
import sys
import time
import types
from pathlib import Path
from unittest import mock

import numpy as np
import torch

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT / "tests/python"), str(PROJECT / "apps/python")]
import oscar_kv  # noqa: E402
import vllm_fakes  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
vllm_fakes.install(DEVICE)
from oscar_kv import vllm_backend  # noqa: E402

from attention_peers import time_sdpa  # noqa: E402
from gpu_timing import time_graph  # noqa: E402

BLOCK = 16  # vLLM's on GPUs
LIMIT = 0.02


class Backend:
    """Layers of the backend with their caches. shapes: {layer name: (query heads, KV heads, d, scale)}."""

    def __init__(self, rotations, shapes, block, blocks, requests, tokens):
        self.set = rotations
        with self.serving():
            self.layers = {}
            for name, (heads, kv_heads, dim, scale) in shapes.items():
                layer = vllm_fakes.FakeAttention(name, vllm_backend.PackedBackend, vllm_fakes.Spec(block, kv_heads, dim))
                layer.impl = vllm_backend.PackedImpl(heads, dim, scale, kv_heads)
                self.layers[name] = layer
            config = vllm_fakes.config_of(self.layers, blocks, requests, tokens)
            specs = {name: layer.get_kv_cache_spec(config) for name, layer in self.layers.items()}
            self.caches = {name: torch.zeros(blocks, 1, block, spec.state_content_bytes, dtype=torch.uint8, device=DEVICE)
                           for name, spec in specs.items()}
            for name, layer in self.layers.items():
                layer.kv_cache = self.caches[name]
            self.builder = vllm_backend.PackedMetadataBuilder(next(iter(specs.values())), list(self.layers), config, torch.device(DEVICE))
        self.path = sorted({layer.impl.packed.path for layer in self.layers.values()})

    def serving(self):
        serving = contextlib.ExitStack()
        serving.enter_context(mock.patch.object(vllm_backend, "packed_set", lambda: self.set))
        serving.enter_context(mock.patch.object(vllm_backend, "_report", lambda *_: None))
        return serving

    def build(self, **common):
        return self.builder.build(0, types.SimpleNamespace(**common))

    def forward(self, name, metadata, q, k, v):
        layer = self.layers[name]
        return layer.impl.forward(layer, q, k, v, self.caches[name], metadata, torch.empty_like(q))


def on_gpu(x):
    return x.to(DEVICE) if isinstance(x, torch.Tensor) else x


def replay(record, rotations):
    """Relative errors of decode steps and of the rest, the path that was taken, and the seconds."""
    config = record["config"]
    shapes = {name: (each["heads"], each["kv_heads"], each["dim"], each["scale"]) for name, each in record["layers"].items()}
    backend, errors, begin = Backend(rotations, shapes, *(config[n] for n in ("block_size", "blocks", "requests", "tokens"))), {}, time.time()
    for step in record["steps"]:
        if not step["calls"]:
            continue
        common = {name: x if name == "query_start_loc_cpu" else on_gpu(x) for name, x in step.items() if name != "calls"}
        metadata = backend.build(query_start_loc=on_gpu(step["query_start_loc_cpu"]), req_idx=None, is_prefilling=None, **common)
        starts = step["query_start_loc_cpu"]
        single = int((starts[1:] - starts[:-1]).max()) == 1
        for name, (q, k, v, expected) in step["calls"].items():
            found = backend.forward(name, metadata, *map(on_gpu, (q, k, v))).cpu().double()
            error = float((found - expected.double()).norm() / expected.double().norm())
            errors.setdefault("decode steps" if single else "others", []).append(error)
    return {"path": backend.path, "seconds": time.time() - begin} | {
        kind: {"calls": len(each), "largest_error": max(each), "mean_error": sum(each) / len(each)} for kind, each in errors.items()}


def random_set(heads, dim):
    """2 bits in each channel."""
    def side():
        rotation, ones = torch.linalg.qr(torch.randn(heads, dim, dim))[0], torch.ones(heads, dim)
        return oscar_kv.Side(rotation, rotation, None, (4 * ones).int(), ones, ones)

    return oscar_kv.SetPart({0: oscar_kv.Layer(0, side(), side())}, (64, 256))


def decode_step(backend, batch, length, heads, kv_heads, dim):
    """A step of one token of each of the requests, each behind `length` tokens whose rows are in the cache: call() runs it."""
    per_request = -(-(length + 1) // BLOCK)
    table = torch.randperm(batch * per_request, device="cuda").int().reshape(batch, per_request)
    (name, cache), = backend.caches.items()
    packed, chunk = backend.layers[name].impl.packed, 1 << 16
    slots = (table[:, :, None] * BLOCK + torch.arange(BLOCK, device="cuda")).reshape(batch, -1)[:, :length].flatten().long()
    for part in slots.split(chunk):
        packed.write(cache, part.int(), torch.randn(2, len(part), kv_heads, dim, device="cuda").bfloat16())
    last = table[:, length // BLOCK].long() * BLOCK + length % BLOCK
    starts = torch.arange(batch + 1, dtype=torch.int32)
    common = {"query_start_loc_cpu": starts, "query_start_loc": starts.cuda(), "num_actual_tokens": batch,
              "req_idx": np.arange(batch), "is_prefilling": torch.zeros(batch, dtype=torch.bool),
              "seq_lens": torch.full((batch,), length + 1, dtype=torch.int32, device="cuda"), "block_table_tensor": table,
              "slot_mapping": last}
    metadata = backend.build(**common)
    q, k, v = (torch.randn(batch, n, dim, device="cuda").bfloat16() for n in (heads, kv_heads, kv_heads))
    return lambda: backend.forward(name, metadata, q, k, v), lambda: backend.build(**common)


def wall(call, most=50):
    """Microseconds of a call as Python makes it."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(most):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / most * 1e6


def speed(batches, heads=32, kv_heads=8, dim=128):
    oscar_kv.load_library()
    rows = []
    for batch, length in batches:
        blocks = batch * -(-(length + 1) // BLOCK)
        row = {"batch": batch, "context": length, "bf16_attention_us": time_sdpa(batch, heads, kv_heads, dim, length, 2)}
        for name, kernels in (("coded", True), ("coded, torch", False)):
            if not kernels and batch * length > 40000:
                continue  # a request after another, decoded whole
            hide = mock.patch.object(vllm_backend, "why_no_decode", lambda *_: None if kernels else "as asked for")
            with hide:
                backend = Backend(random_set(kv_heads, dim), {"model.layers.0.attn": (heads, kv_heads, dim, dim**-0.5)}, BLOCK,
                                  blocks, batch, 2048)
            call, build = decode_step(backend, batch, length, heads, kv_heads, dim)
            row[name] = {"path": backend.path, "layer_us": wall(call, 50 if kernels else 3), "metadata_us": wall(build, 5),
                         "bytes_per_token": backend.caches["model.layers.0.attn"].shape[3]}
            if kernels:
                row[name]["graph_us"] = time_graph(lambda _: call(), 2, 10)
            print(batch, length, name, row[name], flush=True)
            del backend, call, build
            torch.cuda.empty_cache()
        print(batch, length, row["bf16_attention_us"], flush=True)
        rows.append(row)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="append", default=[], metavar="FILE.pt=SET")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--out")
    parser.add_argument("--commit", default="", help="of the library, for the results")
    options = parser.parse_args()
    result = {"gpu": torch.cuda.get_device_name() if DEVICE == "cuda" else "none", "torch": torch.__version__, "commit": options.commit, "replays": []}
    torch.manual_seed(0)
    wrong = False
    for each in options.record:
        path, name = each.split("=", 1)
        record, rotations = torch.load(path), oscar_kv.read_set(name, "vllm").to_torch()
        for kernels in (True, False):
            why = None if kernels else "as asked for"
            with mock.patch.object(vllm_backend, "why_no_decode", lambda *_: why) if why else mock.patch.object(vllm_backend, "_log"):
                found = replay(record, rotations)
            result["replays"].append({"set": Path(name).name, "steps": len(record["steps"])} | found)
            print(json.dumps(result["replays"][-1]), flush=True)
            wrong |= any(found[kind]["largest_error"] > LIMIT for kind in ("decode steps", "others"))
    if options.speed:
        result["speed"] = speed(((1, 4096), (1, 32768), (32, 4096), (32, 32768), (1, 100000)))
    if options.out:
        Path(options.out).write_text(json.dumps(result, indent=1))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
