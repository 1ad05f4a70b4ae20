#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The tables of README.md beside this file: what a fit reads, computes, takes and costs, from shapes and from rates that were
measured. sizing.py [--write]: prints the tables, or puts them into README.md.

A time is bytes over the rate at which one H200 consumed them (tests/bench/results), divided by the GPUs that have a layer, or
a part, of their own; nothing is assumed about what several GPUs lose. DOLLARS is an assumption.
"""
import json
import math
import sys
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "tests/bench/results"
TOKENS = 30000
DOLLARS = 3.5  # an hour of one GPU
GPUS = (1, 4, 8, 16, 64)
# name, layers, query heads, KV heads, active parameters, bytes of the checkpoint; head_dim 128
MODELS = (("8B (Qwen3-8B)", 36, 32, 8, 8.2e9, 16.4e9), ("32B (Qwen3-32B)", 64, 64, 8, 32.8e9, 65.5e9),
          ("358B (GLM-4.7, float8)", 92, 96, 8, 32e9, 358e9), ("1T (64/8 heads, 61 layers, float8)", 61, 64, 8, 32e9, 1e12))


def rates():
    fit = json.loads((RESULTS / "fit_h200.json").read_text())
    live = json.loads((RESULTS / "live_h200.json").read_text())
    return {"dump": min(fit["f1"]["gb_per_s"], fit["f4"]["gb_per_s"]) * 1e9,
            "live": {True: live["glm-4.7"]["weights_gb"] / live["glm-4.7"]["fit_seconds"] * 1e9,
                     False: live["qwen3-8b"]["weights_gb_per_s"] * 1e9}}


def of_dump(layers, query_heads, kv_heads):
    """Bytes of q, k and v, and floating-point operations of qqt (all query heads) and sst (weights, then sums)."""
    width, dim = query_heads + 2 * kv_heads, 128
    return layers * TOKENS * width * dim * 2, layers * TOKENS * (2 * query_heads + 4 * kv_heads) * dim * dim


def duration(seconds):
    if seconds < 10:
        return f"{seconds:.2g} s"
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:.0f} min"


def cents(seconds, gpus):
    cost = 100 * DOLLARS * gpus * seconds / 3600
    return f"{cost:.1f}" if cost < 10 else f"{cost:.0f}"


def row(cells):
    return "| " + " | ".join(cells) + " |"


def tables():
    rate = rates()
    lines = [f"A fit of a dump, {TOKENS:,} tokens (time; cents for all GPUs at {DOLLARS} dollars an hour each):", "",
             row(["model", "dump", "TFLOP of moments", *(f"{n} GPU{'s' * (n > 1)}" for n in GPUS)]), "|---|" + "---|" * (len(GPUS) + 2)]
    for name, layers, query_heads, kv_heads, _, _ in MODELS:
        size, work = of_dump(layers, query_heads, kv_heads)
        times = [size / layers * math.ceil(layers / n) / rate["dump"] for n in GPUS]
        lines.append(row([name, f"{size / 1e9:.0f} GB", f"{work / 1e12:.1f}",
                          *(f"{duration(t)}; {cents(t, n)}" for t, n in zip(times, GPUS))]))
    lines += ["", f"A live fit, {TOKENS:,} tokens on each GPU (parts: every GPU reads all of the weights, so that more GPUs take more "
              "text in the same time):", "",
              row(["model", "weights", "TFLOP of the forward pass on each", "time", *(f"tokens, cents: {n}" for n in GPUS)]),
              "|---|" + "---|" * (len(GPUS) + 3)]
    for name, *_, active, weights in MODELS:
        seconds = weights / rate["live"]["float8" in name]
        lines.append(row([name, f"{weights / 1e9:.0f} GB", f"{2 * active * TOKENS / 1e12:.0f}", duration(seconds),
                          *(f"{n * TOKENS // 1000}K; {cents(seconds, n)}" for n in GPUS)]))
    return "\n".join(lines) + "\n"


def with_tables(text):
    begin, end = text.index("<!-- sizing -->\n") + len("<!-- sizing -->\n"), text.index("<!-- end of sizing -->")
    return text[:begin] + tables() + text[end:]


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        page = HERE / "README.md"
        page.write_text(with_tables(page.read_text()))
    else:
        print(tables(), end="")
