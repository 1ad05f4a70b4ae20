# SPDX-License-Identifier: MIT
"""A prompt's chunk behind packed tokens on a GPU: bench_prefill_cuda.py [--out FILE.json] [--commit HASH] [--gpu TEXT]

OSCAR_TORCH_LIBRARY is liboscar_torch.so. A layer's attention of Qwen3-8B's shape: queries are transformed, the history decoded in
pieces and attended to, the windows, the chunk's own tokens, all joined, outputs transformed back (oscar_kv/chunk_attention.py); beside
torch's flash attention over bfloat16 rows of as many tokens, one call, in turns. Medians of CUDA events over distinct caches and rows.
Of each case outputs are compared with flash attention over the decoded rows; exit status 1 if they differ by more than 1 %, or if a
layer has less than 60 % of the rate.
"""
import argparse
import json
import os
import statistics
import sys
from pathlib import Path

import torch

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "apps/python"))
import oscar_kv  # noqa: E402
from oscar_kv import chunk_attention, packed_layer  # noqa: E402

import gpu_machine  # noqa: E402
import provenance  # noqa: E402
from bench_coded_attention import dealt, steps_for  # noqa: E402
from gpu_timing import copy_rate  # noqa: E402

HEADS, KV_HEADS, DIM, BLOCK = 32, 8, 128, 16
SINK, RECENT = 64, 256
SCALE, TARGET, COPIES, REPEATS = DIM**-0.5, 0.6, 2, 9
# Bits of blocks: 2 in each channel, and as fits of real models deal them.
PLANS = {"coded, 2 bits each": {"key": [[2] * 16], "value": [[2] * 16]},
         "coded, as fits deal": {"key": [[8, 4, 4, 4, 2, 2, 2, 2, 2, 1, 1, 0, 0, 0, 0, 0], [5, 4, 4, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 1, 0, 0]],
                                 "value": [[4, 4, 4, 3, 3, 2, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0], [3, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1]]}}


def side_of(bits):
    """bits: of each KV head's blocks."""
    rotation = torch.linalg.qr(torch.randn(KV_HEADS, DIM, DIM))[0]
    levels = (1 << torch.tensor(bits)).int().repeat_interleave(8, 1)
    return oscar_kv.Side(rotation, rotation, None, levels, steps_for(bits, DIM), torch.ones(KV_HEADS, DIM))


def slots_for(plan):
    sides = [side_of(dealt(plan[name], KV_HEADS, 0)) for name in ("key", "value")]
    return packed_layer.PackedSlots(oscar_kv.Layer(0, *sides), KV_HEADS, DIM, torch.device("cuda"), torch.bfloat16)


def random_rows(*shape):
    return torch.randn(*shape, device="cuda").bfloat16()


class Case:
    """A chunk of `count` tokens behind `before`, of which all but the windows are packed."""

    def __init__(self, packed, count, before):
        self.packed, history = packed, before - SINK - RECENT + 1
        blocks = -(-history // BLOCK)
        self.cache = torch.zeros(blocks, 1, BLOCK, packed.bytes, dtype=torch.uint8, device="cuda")
        self.slots = (torch.randperm(blocks, device="cuda")[:, None] * BLOCK + torch.arange(BLOCK, device="cuda")).flatten()[:history].int()
        for part in self.slots.split(1 << 14):
            packed.write(self.cache, part, random_rows(2, len(part), KV_HEADS, DIM))
        self.windows = random_rows(2, before - history, KV_HEADS, DIM)
        self.own, self.q = random_rows(2, count, KV_HEADS, DIM), random_rows(count, HEADS, DIM)
        self.output = torch.empty_like(self.q)

    def attend(self, turned):
        return chunk_attention.attend(turned, self.own, self.windows, self.packed, self.cache, self.slots, SCALE)[0]

    def layer(self):
        turned = torch.empty_like(self.q)
        self.packed.turn(self.q, turned)
        self.packed.turn_back(self.attend(turned), self.output)

    def pieces(self):
        return chunk_attention._pieces(self.windows.transpose(1, 2), self.packed, self.cache, self.slots)

    def unpack(self):
        for _ in self.pieces():
            pass

    def error(self):
        """Of attend(), against flash attention over the rows as they are decoded."""
        keys, values = torch.cat([*(piece.clone() for piece in self.pieces()), self.own.transpose(1, 2)], 2)
        want = flash(self.q, keys, values)
        return float((self.attend(self.q) - want).norm() / want.float().norm())


def flash(q, keys, values):
    """q (tokens, heads, d), the last tokens of keys and values (KV heads, tokens, d): bfloat16 of q's shape."""
    rows = q.transpose(0, 1)[None], keys[None], values[None]
    return torch.ops.aten._scaled_dot_product_flash_attention(*rows, 0.0, True, scale=SCALE)[0][0].transpose(0, 1)


def milliseconds(calls):
    """{name: median}; calls: {name: call(i) of the i-th copy}, made in turns."""
    times = {name: [] for name in calls}
    for repeat in range(REPEATS + 2):
        for name, call in calls.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call(repeat % COPIES)
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end))
    return {name: statistics.median(each[2:]) for name, each in times.items()}


def peak_bytes(call):
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    call()
    return torch.cuda.max_memory_allocated() - held


def bench(rate):
    rows = []
    for name, plan in PLANS.items():
        packed = slots_for(plan)
        for before in (32768, 100000):
            for count in (2048, 8192):
                cases = [Case(packed, count, before) for _ in range(COPIES)]
                native = [random_rows(2, before + count, KV_HEADS, DIM).transpose(1, 2) for _ in range(COPIES)]
                error = cases[0].error()
                times = milliseconds({"layer_ms": lambda i: cases[i].layer(), "unpack_ms": lambda i: cases[i].unpack(),
                                      "bf16_flash_ms": lambda i: flash(cases[i].q, *native[i])})
                work = 4 * HEADS * DIM * count * (before + count / 2)
                moved = len(cases[0].slots) * (packed.bytes + 4 * KV_HEADS * DIM)
                row = {"set": name, "bits": 8 * packed.bytes / (2 * KV_HEADS * DIM), "queries": count, "tokens_before": before, **times,
                       "rate_of_bf16": times["bf16_flash_ms"] / times["layer_ms"], "tflop_per_s": work / times["layer_ms"] / 1e9,
                       "bf16_tflop_per_s": work / times["bf16_flash_ms"] / 1e9,
                       "unpack_fraction_of_copy_rate": moved / times["unpack_ms"] / 1e9 / rate,
                       "relative_error": error, "peak_mib": peak_bytes(cases[0].layer) / 2**20}
                rows.append(row)
                print(json.dumps(row), flush=True)
                del cases, native
                torch.cuda.empty_cache()
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    parser.add_argument("--commit", default=os.environ.get("OSCAR_COMMIT", ""), help="of the library; default: this checkout's")
    parser.add_argument("--gpu", default="", help="its name, driver and memory")
    options = parser.parse_args()
    machine = gpu_machine.describe()
    oscar_kv.load_library()
    torch.manual_seed(0)
    rate = copy_rate()
    torch.cuda.empty_cache()
    rows = bench(rate)
    result = {"gpu": options.gpu or torch.cuda.get_device_name(), "machine": machine, "commit": options.commit or provenance.commit(),
              "shape": {"query_heads": HEADS, "kv_heads": KV_HEADS, "head_dim": DIM, "block": BLOCK, "sink": SINK, "recent": RECENT},
              "copy_tb_per_s": rate, "target_rate_of_bf16": TARGET, "cases": rows}
    if options.out:
        Path(options.out).write_text(json.dumps(result, indent=1))
    wrong = [row for row in rows if row["relative_error"] > 0.01 or row["rate_of_bf16"] < TARGET]
    print("missed:" if wrong else "all cases are within their limits", *(f"\n{row}" for row in wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
