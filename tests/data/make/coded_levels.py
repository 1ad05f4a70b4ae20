# SPDX-License-Identifier: MIT
"""Writes ../codec/coded_levels.json: plans of levels by a greedy search on the convex hull in plain Python. coded_levels.py"""
import heapq
import json
import random
from pathlib import Path

ERROR = [3, .3634, .1175, .03454, .009497, .002499, .000644, .000164, .0000413]


def plan(energy, budget):
    widths, used, steps = [0] * len(energy), 0, []

    def offer(i):
        options = [(energy[i] * (ERROR[widths[i]] - ERROR[w]) / (w - widths[i]), w) for w in range(widths[i] + 1, 9)]
        if options:
            gain, to = max(options, key=lambda option: option[0])
            heapq.heappush(steps, (-gain, i, to))

    for i in range(len(energy)):
        offer(i)
    while steps:
        _, i, to = heapq.heappop(steps)
        if used + to - widths[i] > budget:
            continue
        used += to - widths[i]
        widths[i] = to
        offer(i)
    return widths


def main():
    rng, cases = random.Random(11), []
    for blocks, bits in ((8, 2), (16, 2), (16, 1.25), (64, 1.5), (96, 3), (240, 2), (5, 4)):
        energy = sorted((2 ** rng.uniform(-14, 3) for _ in range(blocks)), reverse=True)
        budget = int(blocks * bits)
        cases.append({"energy": energy, "budget": budget, "widths": plan(energy, budget)})
    Path(__file__).parents[1].joinpath("codec/coded_levels.json").write_text(json.dumps(cases) + "\n")


if __name__ == "__main__":
    main()
