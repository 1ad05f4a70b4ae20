# SPDX-License-Identifier: MIT
"""Decode attention over a coded cache on a GPU, timed beside torch and FlashInfer. Whether it is right is tested by tests/conformance.

bench_coded_attention.py KERNELS [--plans FILE.json] [--out FILE.json] [--commit HASH]
KERNELS: the shared object with oscar_coded_decode (oscar_cuda.so). FILE: {name: {"head_dim": d, "layers": [{"key": bits of
each KV head's blocks, "value": the same, "order": of keys before RoPE, the pair of each KV head's coordinates}]}}, as coded_plans.py makes it of sets. A plan's heads are dealt to the KV heads of
a layer. Times are medians of CUDA graph replays over distinct caches that no cache of the chip holds.
"""
import argparse
import ctypes
import json

import torch

from attention_peers import time_flashinfer, time_sdpa
from coded_library import CodedFormat, DecodeArgs, Rows, decode, open_library, random_pages, turn_table
from gpu_timing import copy_rate, time_graph


def steps_for(bits, dim):
    """Steps that make all channels about as large."""
    width = torch.tensor(bits).repeat_interleave(8, dim=1).float()
    return torch.where(width > 0, 3.5 / (2**width - 1).clamp(min=1), torch.ones(())) * (0.7 + 0.6 * torch.rand(len(bits), dim))


class PageTable:
    """Pages of sequences of so many tokens, in a random order."""

    def __init__(self, lengths, page_size):
        counts, self.page_size = [max(1, -(-n // page_size)) for n in lengths], page_size
        self.total = sum(counts)
        order = torch.randperm(self.total, device="cuda").int()
        self.table = torch.zeros(len(counts), max(counts), dtype=torch.int32, device="cuda")
        for b, count in enumerate(counts):
            self.table[b, :count] = order[sum(counts[:b]):sum(counts[:b + 1])]
        self.lengths = torch.tensor(lengths, dtype=torch.int32, device="cuda")

    def fill(self, table):
        table.pages, table.lengths = self.table.data_ptr(), self.lengths.data_ptr()
        table.pages_per_sequence, table.page_size, table.max_length = self.table.shape[1], self.page_size, int(self.lengths.max())


class CodedCase:
    """order: of keys before RoPE, the pair of each coordinate of each KV head."""

    def __init__(self, library, heads, k_bits, v_bits, lengths, windows, page_size, tokens=1, order=None):
        self.kernels = library
        kv_heads, dim, batch = len(k_bits), 8 * len(k_bits[0]), len(lengths)
        self.format = CodedFormat(library, k_bits, v_bits, steps_for(k_bits, dim), steps_for(v_bits, dim))
        self.history, self.window = PageTable(lengths, page_size), PageTable(windows, page_size)
        self.pages = random_pages(self.format, self.history.total, page_size)
        self.windows = torch.randn(2, self.window.total, kv_heads, page_size, dim, device="cuda").bfloat16()
        self.q = torch.randn(batch, tokens, heads, dim, device="cuda").bfloat16()
        self.out = torch.full((batch, tokens, heads, dim), float("nan"), device="cuda")
        self.lse = torch.full((batch, tokens, heads), float("nan"), device="cuda")
        a = self.args = DecodeArgs(layout=self.format.layout, batch=batch, num_q_heads=heads, query_tokens=tokens, softmax_scale=dim**-0.5,
                                   page_stride=self.pages.stride(0))
        a.q, a.out, a.lse, a.pages = (t.data_ptr() for t in (self.q, self.out, self.lse, self.pages))
        a.k_window, a.v_window = (Rows(x.data_ptr(), 2 * x.stride(0), 2 * x.stride(2), 2 * x.stride(1)) for x in self.windows)
        if order is not None:
            self.turn, self.positions = turn_table(library, order, 1e6 ** -(torch.arange(dim // 2) / (dim // 2))), torch.full_like(self.history.lengths, 64)
            a.turned.table, a.turned.positions = self.turn.data_ptr(), self.positions.data_ptr()
        self.history.fill(a.history)
        self.window.fill(a.window)
        a.workspace_bytes = library.oscar_coded_decode_workspace(ctypes.byref(a))
        if a.workspace_bytes == 0:
            raise ValueError(library.oscar_last_error().decode())
        self.workspace = torch.zeros(a.workspace_bytes, dtype=torch.uint8, device="cuda")
        a.workspace = self.workspace.data_ptr()

    def run(self):
        decode(self.kernels, self.args)


def dealt(heads, count, layer):
    return [heads[(layer + i) % len(heads)] for i in range(count)]


def bench_peers(name, batch, length, heads, kv_heads, tokens):
    """FlashInfer, of one query token, and bfloat16, whose query tokens see all others: a mask would not make it faster."""
    row, layers = {"case": name}, 5 if batch * length < 1e6 else 2
    if tokens == 1:
        row["flashinfer"] = time_flashinfer(batch, heads, kv_heads, 128, length, layers)
    row["bf16_microseconds"] = time_sdpa(batch, heads, kv_heads, 128, length, layers, tokens)
    print(f"{name:16} peers {row}", flush=True)
    return row


def bench(library, plans, with_peers):
    rate, rows = copy_rate(), []
    for name, batch, length, heads, kv_heads, tokens in (
            ("B=1, 100K", 1, 100000, 32, 8, 1), ("B=32, 32K", 32, 32768, 32, 8, 1), ("B=1, 32K", 1, 32768, 32, 8, 1),
            ("B=8, 32K", 8, 32768, 32, 8, 1), ("B=32, 8K", 32, 8192, 32, 8, 1), ("B=1, 100K, 96/8", 1, 100000, 96, 8, 1), ("B=1, 100K, 2 query tokens", 1, 100000, 32, 8, 2),
            ("B=1, 100K, 4 query tokens", 1, 100000, 32, 8, 4), ("B=1, 100K, 8 query tokens", 1, 100000, 32, 8, 8),
            ("B=32, 32K, 2 query tokens", 32, 32768, 32, 8, 2), ("B=32, 32K, 4 query tokens", 32, 32768, 32, 8, 4)):
        window = 320
        for plan_name, plan in plans.items():
            dim, by_layer = plan["head_dim"], []
            for layer in range(len(plan["layers"])):
                bits = [dealt(plan["layers"][layer][side], kv_heads, layer) for side in ("key", "value")]
                order = dealt(plan["layers"][layer]["order"], kv_heads, layer) if "order" in plan["layers"][layer] else None

                def case():
                    return CodedCase(library, heads, *bits, [length - window] * batch, [window] * batch, 64, tokens, order)

                first = case()
                layer_bytes = batch * ((length - window) * first.format.layout.token_bytes + kv_heads * window * 4 * dim)
                copies = max(2, int(200e6 / layer_bytes) + 1)
                cases = [first] + [case() for _ in range(copies - 1)]
                us = time_graph(lambda i: cases[i % copies].run(), copies * (2 if batch == 1 else 1), 15)
                by_layer.append({"microseconds": us, "bytes": layer_bytes, "operands":
                                 [first.format.layout.key_operands, first.format.layout.value_operands]})
                del cases, first
            mean = sum(row["microseconds"] for row in by_layer) / len(by_layer)
            bytes_ = sum(row["bytes"] for row in by_layer) / len(by_layer)
            rows.append({"case": name, "plan": plan_name, "head_dim": dim, "microseconds": mean, "bytes": bytes_, "layers": by_layer})
            print(f"{name:26} {plan_name:14} {mean:8.2f} us {bytes_ / mean / 1e6:5.2f} TB/s  {bytes_ / mean / 1e6 / rate:5.1%} of copy  "
                  + " ".join(f"{row['microseconds']:.1f}" for row in by_layer), flush=True)
        if with_peers:
            rows.append(bench_peers(name, batch, length, heads, kv_heads, tokens))
    return {"copy_tb_per_s": rate, "cases": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--plans")
    parser.add_argument("--out")
    parser.add_argument("--commit", default="", help="of the library, for the results")
    options = parser.parse_args()
    library = open_library(options.kernels)
    uniform = {"key": [[2] * 16], "value": [[2] * 16]}
    by_pair = [i // 2 for i in range(128)]  # the fastest pairs first
    plans = {"2 bits": {"head_dim": 128, "layers": [uniform]},
             "2 bits, before RoPE": {"head_dim": 128, "layers": [uniform | {"order": [by_pair]}]},
             "steep": {"head_dim": 128, "layers": [{"key": [[8, 4, 4, 4, 2, 2, 2, 2, 2, 1, 1, 0, 0, 0, 0, 0]],
                                                    "value": [[4, 4, 4, 3, 3, 2, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0]]}]}}
    if options.plans:
        with open(options.plans, encoding="utf-8") as file:
            plans.update(json.load(file))
    result = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "commit": options.commit,
              **bench(library, plans, not options.no_peers)}
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
