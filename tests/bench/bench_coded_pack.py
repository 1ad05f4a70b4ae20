# SPDX-License-Identifier: MIT
"""The write path of a coded cache on a GPU, by the torch operators: bench_coded_pack.py LIBRARY [--plans FILE.json] [--out FILE.json]
[--commit HASH]

LIBRARY: liboscar_torch.so. FILE: as bench_coded_attention.py takes it; a plan's heads are dealt to the 8 KV heads of a layer.
A prefill tile of a layer's keys: bfloat16 rows are read, bytes of pages written. Times are medians of CUDA graph replays over
distinct rows and pages; a copy of as many bytes is timed beside them.
"""
import argparse
import json

import torch

from bench_coded_attention import dealt, steps_for
from gpu_timing import copy_rate, time_graph

HEADS, PAGE = 8, 64


class PackCase:
    """Keys and values of a layer, of which one side or both are packed."""

    def __init__(self, plan, layer, tokens, both):
        dim = plan["head_dim"]
        bits = [dealt(plan["layers"][layer][side], HEADS, layer) for side in ("key", "value")]
        steps, ones = [steps_for(each, dim) for each in bits], torch.ones(HEADS, dim)
        numbers, tables = torch.ops.oscar.coded_layout(*(torch.tensor(each, dtype=torch.uint8) for each in bits), *steps, ones, ones)
        self.layout, self.tables = numbers.tolist(), tables.cuda()
        pages = -(-tokens // PAGE)
        self.pages = torch.zeros(pages, PAGE, self.layout[5], dtype=torch.uint8, device="cuda")
        self.slots = (torch.randperm(pages, device="cuda")[:, None] * PAGE + torch.arange(PAGE, device="cuda")).flatten()[:tokens].int()
        self.rows = {name: torch.randn(tokens, HEADS, dim, device="cuda").bfloat16() for name in ("k", "v")[:1 + both]}
        written = [sum(-(-sum(head) // 8) * 8 + 2 for head in each) for each in bits[:1 + both]]
        self.bytes = sum(x.nbytes for x in self.rows.values()) + tokens * sum(written)

    def run(self):
        torch.ops.oscar.coded_pack(self.slots, self.pages, self.layout, self.tables, **self.rows)


CASES = (("pack", 65536, False), ("pack keys and values", 32768, True), ("a step of 32 sequences", 32, True))


def bench(plans, rate):
    found = []
    for name, tokens, both in CASES:
        for plan_name, plan in plans.items():
            layers = []
            for layer in range(len(plan["layers"])):
                sets = [PackCase(plan, layer, tokens, both) for _ in range(4)]
                layers.append({"microseconds": time_graph(lambda i: sets[i % 4].run(), 8, 20), "bytes": sets[0].bytes})
            us, size = (sum(row[key] for row in layers) / len(layers) for key in ("microseconds", "bytes"))
            found.append({"case": name, "plan": plan_name, "tokens": tokens, "microseconds": us, "bytes": size,
                          "fraction_of_copy_rate": size / us / 1e6 / rate, "layers": layers})
            print(f"{name:24} {plan_name:24} {us:8.2f} us {size / us / 1e6 / rate:6.1%} of copy  "
                  + " ".join(f"{row['microseconds']:.1f}" for row in layers), flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", help="liboscar_torch.so")
    parser.add_argument("--plans")
    parser.add_argument("--out")
    parser.add_argument("--commit", default="", help="of the library, for the results")
    options = parser.parse_args()
    torch.ops.load_library(options.operators)
    torch.manual_seed(0)
    plans = {"2 bits": {"head_dim": 128, "layers": [{"key": [[2] * 16], "value": [[2] * 16]}]}}
    if options.plans:
        with open(options.plans, encoding="utf-8") as file:
            plans.update(json.load(file))
    rate = copy_rate()
    result = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "commit": options.commit, "copy_tb_per_s": rate,
              "cases": bench(plans, rate)}
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
