# SPDX-License-Identifier: MIT
"""INT2 decode attention on a GPU, timed beside bfloat16 attention of torch in the same run. Whether it is right is tested by
tests/unit/kernels_cuda.

bench_attention.py KERNELS [--out FILE.json] [--commit HASH]
KERNELS: the shared object with oscar_int2_decode (oscar_cuda.so). Cases cycle over enough distinct layers that no cache
holds them; times are medians of CUDA graph replays. Prints one line a case: microseconds, TB/s of the bytes that must be
read, the fraction of the measured copy rate, and the ratio to the best bfloat16 kernel.
"""
import argparse
import ctypes
import json
import sys

import torch

from int2_library import DTYPES, Args, Rows, call, copy_rate, open_library, time_graph


class Pool:
    """Rows in pages (page, KV head, token in page, width): contiguous per head."""

    def __init__(self, rows_per_sequence, page_size, heads, make):
        self.page_size = page_size
        counts = [max(1, -(-n // page_size)) for n in rows_per_sequence]
        total = sum(counts)
        order = torch.randperm(total, device="cuda").int()
        self.table = torch.zeros(len(counts), max(counts), dtype=torch.int32, device="cuda")
        start = 0
        for b, count in enumerate(counts):
            self.table[b, :count] = order[start:start + count]
            start += count
        self.lengths = torch.tensor(rows_per_sequence, dtype=torch.int32, device="cuda")
        self.tensors = [make(width, dtype, (total, heads, page_size)) for width, dtype in make.widths]

    def rows(self, i):
        t = self.tensors[i]
        return Rows(t.data_ptr(), t.stride(0) * t.element_size(), t.stride(2) * t.element_size(),
                    t.stride(1) * t.element_size())

    def fill(self, table, args_table):
        args_table.pages, args_table.lengths = self.table.data_ptr(), self.lengths.data_ptr()
        args_table.pages_per_sequence = self.table.shape[1]
        args_table.page_size = self.page_size
        args_table.max_length = int(self.lengths.max())


class Case:
    def __init__(self, library, heads, kv_heads, dim, group, param_dtype, lengths, windows, page_size):
        self.kernels = library
        batch = len(lengths)
        groups = dim // group

        def make_history(width, dtype, shape):
            if dtype == torch.uint8:
                return torch.randint(0, 256, (*shape, width), dtype=torch.uint8, device="cuda")
            scale = torch.rand(*shape, groups, 1, device="cuda") + 0.3
            zero = 1.5 + 0.3 * torch.randn(*shape, groups, 1, device="cuda")
            return torch.cat([scale, zero], -1).reshape(*shape, 2 * groups).to(dtype)

        make_history.widths = [(dim // 4, torch.uint8)] * 2 + [(2 * groups, param_dtype)] * 2

        def make_window(width, dtype, shape):
            return torch.randn(*shape, width, device="cuda").to(dtype)

        make_window.widths = [(dim, torch.bfloat16)] * 2
        self.history = Pool(lengths, page_size, kv_heads, make_history)
        self.window = Pool(windows, page_size, kv_heads, make_window)
        self.q = torch.randn(batch, heads, dim, device="cuda").bfloat16()
        self.out = torch.full((batch, heads, dim), float("nan"), device="cuda")
        self.lse = torch.full((batch, heads), float("nan"), device="cuda")
        a = self.args = Args(batch=batch, num_q_heads=heads, num_kv_heads=kv_heads, head_dim=dim, group_size=group,
                             param_dtype=DTYPES[param_dtype], softmax_scale=dim**-0.5)
        a.q, a.out, a.lse = self.q.data_ptr(), self.out.data_ptr(), self.lse.data_ptr()
        a.k_codes, a.v_codes, a.k_params, a.v_params = (self.history.rows(i) for i in range(4))
        a.k_window, a.v_window = self.window.rows(0), self.window.rows(1)
        self.history.fill(None, a.history)
        self.window.fill(None, a.window)
        a.workspace_bytes = library.oscar_int2_decode_workspace(ctypes.byref(a))
        if a.workspace_bytes == 0:
            raise ValueError(library.oscar_last_error().decode())
        self.workspace = torch.zeros(a.workspace_bytes, dtype=torch.uint8, device="cuda")
        a.workspace = self.workspace.data_ptr()

    def run(self):
        call(self.kernels, "oscar_int2_decode", self.args)


def time_sdpa(batch, heads, kv_heads, dim, length, layers, tokens=1):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    best = {}
    q = torch.randn(batch, heads, tokens, dim, device="cuda", dtype=torch.bfloat16)
    kv = [torch.randn(2, batch, kv_heads, length, dim, device="cuda", dtype=torch.bfloat16) for _ in range(layers)]
    for name in ("CUDNN_ATTENTION", "FLASH_ATTENTION"):
        try:
            with sdpa_kernel(getattr(SDPBackend, name)):
                best[name.split("_")[0].lower()] = time_graph(
                    lambda i: torch.nn.functional.scaled_dot_product_attention(
                        q, kv[i % layers][0], kv[i % layers][1], enable_gqa=True), max(layers, 5), 15)
        except RuntimeError as error:
            print("peer", name, "cannot run:", str(error).splitlines()[0], file=sys.stderr)
    return best


def bench(library):
    rate = copy_rate()
    rows = []
    for name, batch, length, heads, kv_heads, group, param_dtype in (
            ("B=1, 100K", 1, 100000, 32, 8, 128, torch.float32), ("B=32, 32K", 32, 32768, 32, 8, 128, torch.float32),
            ("B=1, 32K", 1, 32768, 32, 8, 128, torch.float32), ("B=1, 100K, fp16", 1, 100000, 32, 8, 128, torch.float16),
            ("B=1, 100K, G=64", 1, 100000, 32, 8, 64, torch.float32),
            ("B=1, 100K, 96/8", 1, 100000, 96, 8, 128, torch.float32),
            ("B=8, 8K", 8, 8192, 32, 8, 128, torch.float32)):
        dim, window = 128, 320
        layer_bytes = batch * kv_heads * ((length - window) * (dim // 2 + 4 * dim // group * param_dtype.itemsize) +
                                          window * 4 * dim)
        layers = max(5, int(400e6 / layer_bytes) + 1) if batch == 1 else 5
        cases = [Case(library, heads, kv_heads, dim, group, param_dtype, [length - window] * batch, [window] * batch, 64)
                 for _ in range(layers)]
        us = time_graph(lambda i: cases[i % layers].run(), layers * (1 if batch > 1 else 2))
        del cases
        peers = time_sdpa(batch, heads, kv_heads, dim, length, 5 if batch * length < 1e6 else 2)
        best = min(peers.values()) if peers else float("nan")
        tb = layer_bytes / us / 1e6
        rows.append({"case": name, "microseconds": us, "bytes": layer_bytes, "tb_per_s": tb,
                     "fraction_of_copy_rate": tb / rate, "bf16_microseconds": peers, "ratio_to_best_bf16": best / us})
        print(f"{name:18} {us:8.2f} us  {tb:5.2f} TB/s  {tb / rate:5.1%} of copy  bf16 {best:8.1f} us  {best / us:5.2f}x",
              flush=True)
    return {"copy_tb_per_s": rate, "cases": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels")
    parser.add_argument("--out")
    parser.add_argument("--commit", default="", help="of the library, for the results")
    options = parser.parse_args()
    library = open_library(options.kernels)
    result = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "commit": options.commit, **bench(library)}
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
