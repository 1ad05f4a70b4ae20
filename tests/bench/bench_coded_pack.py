# SPDX-License-Identifier: MIT
"""The write path of a coded cache on a GPU, by the torch operators: bench_coded_pack.py LIBRARY [--plans FILE.json] [--out FILE.json]
[--commit HASH] [--eager] [--only TEXT ...]

LIBRARY: liboscar_torch.so. FILE: as bench_coded_attention.py takes it; a plan's heads are dealt to the 8 KV heads of a layer.
A prefill tile of a layer's keys: bfloat16 rows are read, bytes of pages written. Times are medians of CUDA graph replays over
distinct rows and pages; a copy of as many bytes is timed beside them. Norm and RoPE of keys are the kernel's, whose finished rows
are written or not, or those of torch.compile (--eager: of torch's operators one by one), which writes finished rows for the kernel;
their table of cosines is not among the bytes.
"""
import argparse
import json

import torch

from bench_coded_attention import dealt, steps_for
from gpu_timing import copy_rate, time_graph

HEADS, PAGE, EPSILON = 8, 64, 1e-6


def norm_rope(x, weight, positions, cos_sin):
    """RMS norm and RoPE of keys as a server in bfloat16 computes them."""
    rows = x.float()
    rows = (rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + EPSILON)).to(weight.dtype) * weight
    cos, sin = cos_sin[positions].float()[:, None].chunk(2, -1)
    a, b = rows.bfloat16().float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).bfloat16()


class PackCase:
    """Keys and values of a layer, of which one side or both are packed. lacking: None, or who does the keys' norm and RoPE: "kernel",
    "kernel, finished rows written" or "torch"; the kernel takes cosines in `table`."""

    def __init__(self, plan, layer, tokens, rotate, both, lacking=None, table=torch.float32):
        dim = plan["head_dim"]
        bits = [dealt(plan["layers"][layer][side], HEADS, layer) for side in ("key", "value")]
        steps, ones = [steps_for(each, dim) for each in bits], torch.ones(HEADS, dim)
        numbers, tables = torch.ops.oscar.coded_layout(*(torch.tensor(each, dtype=torch.uint8) for each in bits), *steps, ones, ones)
        self.layout, self.tables = numbers.tolist(), tables.cuda()
        pages = -(-tokens // PAGE)
        self.pages = torch.zeros(pages, PAGE, self.layout[5], dtype=torch.uint8, device="cuda")
        self.slots = (torch.randperm(pages, device="cuda")[:, None] * PAGE + torch.arange(PAGE, device="cuda")).flatten()[:tokens].int()
        self.rows = {name: torch.randn(tokens, HEADS, dim, device="cuda").bfloat16() for name in ("k", "v")[:1 + both]}
        self.others = {}
        if rotate:
            rotation = torch.linalg.qr(torch.randn(HEADS, dim, dim, device="cuda"))[0].bfloat16().contiguous()
            self.others = {f"{name}_rotation": rotation for name in self.rows} | {"k_mean": torch.randn(HEADS, dim, device="cuda")}
        self.by_torch = None
        if lacking is not None:
            weight, positions = torch.rand(dim, device="cuda").bfloat16(), torch.arange(tokens, device="cuda")
            angles = positions[:, None] * 10000.0 ** -(torch.arange(0, dim, 2, device="cuda") / dim)
            cos_sin = torch.cat((angles.cos(), angles.sin()), 1).to(table)
            if lacking == "torch":
                self.by_torch = weight, positions, cos_sin
            else:
                self.others |= {"k_norm_weight": weight, "norm_epsilon": EPSILON, "positions": positions, "cos_sin": cos_sin}
            if lacking == "kernel, finished rows written":
                self.others["k_finished"] = torch.empty_like(self.rows["k"])
        written = [sum(-(-sum(head) // 8) * 8 + 2 for head in each) for each in bits[:1 + both]]
        self.bytes = sum(x.nbytes for x in self.rows.values()) + tokens * sum(written)

    def run(self, compiled):
        rows = self.rows
        if self.by_torch is not None:
            rows = rows | {"k": compiled(rows["k"], *self.by_torch)}
        torch.ops.oscar.coded_pack(self.slots, self.pages, self.layout, self.tables, **rows, **self.others)


CASES = (("pack", 65536, False, False), ("rotate and pack", 65536, True, False),
         ("pack keys and values", 32768, False, True), ("rotate and pack keys and values", 32768, True, True),
         ("a step of 32 sequences", 32, False, True), ("a step of 32 sequences, rotated", 32, True, True),
         ("norm, RoPE and pack", 65536, False, False, "kernel"),
         ("norm, RoPE, rotate and pack", 65536, True, False, "kernel"),
         ("norm, RoPE, rotate and pack, cosines in bfloat16", 65536, True, False, "kernel", torch.bfloat16),
         ("norm, RoPE, rotate and pack, finished rows written", 65536, True, False, "kernel, finished rows written"),
         ("norm and RoPE by torch, then the kernel rotates", 65536, True, False, "torch"))


def bench(plans, rate, compiled, only):
    found = []
    for name, tokens, *options in (case for case in CASES if any(text in case[0] for text in only)):
        for plan_name, plan in plans.items():
            layers = []
            for layer in range(len(plan["layers"])):
                sets = [PackCase(plan, layer, tokens, *options) for _ in range(4)]
                layers.append({"microseconds": time_graph(lambda i: sets[i % 4].run(compiled), 8, 20), "bytes": sets[0].bytes})
            us, size = (sum(row[key] for row in layers) / len(layers) for key in ("microseconds", "bytes"))
            found.append({"case": name, "plan": plan_name, "tokens": tokens, "microseconds": us, "bytes": size,
                          "fraction_of_copy_rate": size / us / 1e6 / rate, "layers": layers})
            print(f"{name:50} {plan_name:24} {us:8.2f} us {size / us / 1e6 / rate:6.1%} of copy  "
                  + " ".join(f"{row['microseconds']:.1f}" for row in layers), flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", help="liboscar_torch.so")
    parser.add_argument("--plans")
    parser.add_argument("--out")
    parser.add_argument("--commit", default="", help="of the library, for the results")
    parser.add_argument("--eager", action="store_true", help="torch's norm and RoPE without torch.compile")
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="cases whose names have one of these texts")
    options = parser.parse_args()
    torch.ops.load_library(options.operators)
    torch.manual_seed(0)
    plans = {"2 bits": {"head_dim": 128, "layers": [{"key": [[2] * 16], "value": [[2] * 16]}]}}
    if options.plans:
        with open(options.plans, encoding="utf-8") as file:
            plans.update(json.load(file))
    rate = copy_rate()
    result = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "commit": options.commit, "copy_tb_per_s": rate,
              "norm_and_rope_by_torch": "eager" if options.eager else "torch.compile",
              "cases": bench(plans, rate, norm_rope if options.eager else torch.compile(norm_rope), options.only)}
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
