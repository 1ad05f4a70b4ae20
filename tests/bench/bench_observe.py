# SPDX-License-Identifier: MIT
"""What torch.ops.oscar.observe costs beside the layer that it watches: bench_observe.py LIBRARY [--json FILE] [--commit HASH]

Layers of Qwen3-8B's shape (random bfloat16 weights, plain torch, flash attention), each a CUDA graph's worth of work with
and without observe, replayed in turn; medians. Needs an NVIDIA GPU and torch alone.
"""
import argparse
import json
import statistics
from pathlib import Path

import torch
from torch.nn import functional

HIDDEN, MLP, Q_HEADS, KV_HEADS, DIM, LAYERS, REPEATS = 4096, 12288, 32, 8, 128, 6, 15


class Layer:
    """Attention with normalised, rotated queries and keys, and a gated MLP."""

    def __init__(self):
        def weight(rows, columns):
            return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) * columns**-0.5

        self.qkv, self.out = weight((Q_HEADS + 2 * KV_HEADS) * DIM, HIDDEN), weight(HIDDEN, Q_HEADS * DIM)
        self.gate_up, self.down = weight(2 * MLP, HIDDEN), weight(HIDDEN, MLP)
        self.norms = [torch.ones(size, device="cuda", dtype=torch.bfloat16) for size in (HIDDEN, HIDDEN, DIM, DIM)]

    def __call__(self, x, cos, sin, watch):
        def norm(x, i):
            return functional.rms_norm(x, x.shape[-1:], self.norms[i])

        def rotated(x):
            first, second = x.chunk(2, -1)
            return x * cos + torch.cat([-second, first], -1) * sin

        qkv = functional.linear(norm(x, 0), self.qkv).unflatten(-1, (-1, DIM))
        q, k, v = qkv.split([Q_HEADS, KV_HEADS, KV_HEADS], 1)
        q, k = rotated(norm(q, 2)), rotated(norm(k, 3))
        watch(q, k, v)
        attended = functional.scaled_dot_product_attention(*(each.transpose(0, 1)[None] for each in (q, k, v)),
                                                           is_causal=True, enable_gqa=True)
        x = x + functional.linear(attended[0].transpose(0, 1).flatten(1), self.out)
        gate, up = functional.linear(norm(x, 1), self.gate_up).chunk(2, -1)
        return x + functional.linear(functional.silu(gate) * up, self.down)


def graph_of(work):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            work()
    torch.cuda.synchronize()
    return graph


def microseconds(graphs):
    """Medians for one layer of each graph. They take turns, in alternating order: a chip that has worked is slower."""
    times = [[] for _ in graphs]
    for repeat in range(2 * REPEATS + 4):
        for graph, mine in list(zip(graphs, times))[::1 if repeat % 2 == 0 else -1]:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            mine.append(begin.elapsed_time(end) * 1000 / LAYERS)
    return [statistics.median(mine[4:]) for mine in times]


@torch.no_grad()
def measure(layers, tokens):
    angles = torch.arange(tokens, device="cuda")[:, None] * 1e6**-(torch.arange(0, DIM, 2, device="cuda") / DIM)
    angles = torch.cat([angles, angles], -1)[:, None]
    cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
    start = torch.randn(tokens, HIDDEN, device="cuda", dtype=torch.bfloat16)
    state, kept = torch.ops.oscar.new_state(), []

    def run(watching):
        x = start
        for i, layer in enumerate(layers):
            x = layer(x, cos, sin, lambda q, k, v: watching(i, q, k, v))
        return x

    def observe(i, *rows):
        torch.ops.oscar.observe(state, i, *rows)

    run(lambda i, *rows: kept.append(rows))
    before = torch.cuda.memory_allocated()
    for i, rows in enumerate(kept):
        observe(i, *rows)
    state_bytes = (torch.cuda.memory_allocated() - before) / LAYERS
    graphs = [graph_of(lambda: run(lambda *_: None)), graph_of(lambda: run(observe)),
              graph_of(lambda: [observe(i, *rows) for i, rows in enumerate(kept)])]
    plain, watched = microseconds(graphs[:2])
    alone, = microseconds(graphs[2:])
    return {"tokens": tokens, "layer_us": plain, "layer_with_observe_us": watched, "observe_alone_us": alone,
            "overhead": watched / plain - 1, "state_mb_per_layer": state_bytes / 1e6}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operators", metavar="LIBRARY")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit")
    options = parser.parse_args()
    torch.ops.load_library(options.operators)
    torch.manual_seed(0)
    layers = [Layer() for _ in range(LAYERS)]
    rows = [measure(layers, tokens) for tokens in (4096, 16384, 1024, 1)]
    for row in rows:
        print(", ".join(f"{name} {value:.4g}" for name, value in row.items()), flush=True)
    result = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "commit": options.commit, "shape": "Qwen3-8B, bfloat16",
              "layers": LAYERS, "repeats": REPEATS, "cases": rows}
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
