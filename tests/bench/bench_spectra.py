# SPDX-License-Identifier: MIT
"""Why a recipe that serves one model fails on another: what the keys and queries of dumps look like, head by head.

bench_spectra.py NAME=DUMP [NAME=DUMP ...] [--out FILE.json]     DUMP: a folder of oscar dump
bench_spectra.py --render FILE.json
Over the KV heads of all layers, the first 64 tokens left out, medians of:
  mean_share       |mean of keys|^2 / mean of |key|^2: the part of the keys that is one constant, which no softmax sees
  query_top        share of the queries' second moment in its first direction
  channel_spread   largest root mean square of a key channel over the median one
  stretch_gain     expected squared error of a logit under the best rotation (mean of key variances times mean of query
                   variances) over that under the best linear transform, (mean of sqrt(eigenvalues of A B))^2, with A the
                   second moment of queries and B that of keys
  stretch_centred  the same gain with B the covariance of keys: their mean subtracted
  coded_gain       the same error over the geometric mean of the eigenvalues of A cov(B): what channels of unequal bits reach
"""
import argparse
import json
from pathlib import Path

import numpy
import provenance
import torch

FIRST = 64
FIGURES = ("mean_share", "query_top", "channel_spread", "stretch_gain", "stretch_centred", "coded_gain")
WORDS = ("keys' energy in their mean", "queries' energy in one direction", "largest key channel over the median",
         "gain of a linear transform", "gain of a linear transform, keys centred", "gain of unequal bits, keys centred")


def rows(folder, name):
    chunks = sorted((folder / name).glob("*.pt"), key=lambda path: (len(path.name), path.name))
    return torch.cat([torch.load(chunk) for chunk in chunks]).double().numpy()[FIRST:]


def figures(q, k):
    """q: (tokens, g, d) of the g query heads that share the KV head of k (tokens, d)."""
    d = k.shape[1]
    q = q.reshape(-1, d)
    mean, b, a = k.mean(0), k.T @ k / len(k), q.T @ q / len(q)
    root = numpy.linalg.cholesky(a + 1e-6 * numpy.trace(a) / d * numpy.eye(d))
    product = lambda moment: numpy.clip(numpy.linalg.eigvalsh(root.T @ moment @ root), 0, None)
    plain, centred = product(b), product(b - numpy.outer(mean, mean))
    rotation = numpy.trace(a) / d * numpy.trace(b) / d
    channels, geometric = numpy.sqrt(numpy.diag(b)), numpy.exp(numpy.log(numpy.clip(centred, 1e-12 * centred.max(), None)).mean())
    return (mean @ mean / numpy.trace(b), numpy.linalg.eigvalsh(a)[-1] / numpy.trace(a), channels.max() / numpy.median(channels),
            rotation / numpy.sqrt(plain).mean() ** 2, rotation / numpy.sqrt(centred).mean() ** 2, rotation / geometric)


def measure(dump):
    found, layers = [], sorted(dump.glob("layer_*"))
    for layer in layers:
        q, k = rows(layer, "q"), rows(layer, "k")
        heads = k.shape[1]
        for head, queries in enumerate(numpy.split(q, heads, axis=1)):
            found.append(figures(queries, k[:, head]))
    median = numpy.median(numpy.array(found), axis=0)
    return {"layers": len(layers), "kv_heads": heads, "head_dim": k.shape[2], "tokens": len(k) + FIRST,
            **{name: float(f"{value:.4g}") for name, value in zip(FIGURES, median)}}


def render(document):
    models = document["models"]
    lines = ["| median over KV heads | " + " | ".join(models) + " |", "|" + "---|" * (len(models) + 1)]
    for name, words in zip(FIGURES, WORDS):
        show = (lambda x: f"{100 * x:.0f} %") if name in ("mean_share", "query_top") else (lambda x: f"{x:.1f}")
        lines.append(f"| {words} | " + " | ".join(show(model[name]) for model in models.values()) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dumps", nargs="*", metavar="NAME=DUMP")
    parser.add_argument("--text", default="", help="what was dumped, in words")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/spectra.json")
    parser.add_argument("--render", type=Path)
    options = parser.parse_args()
    if not options.render:
        if not options.dumps:
            parser.error("give NAME=DUMP, or --render")
        models = {name: measure(Path(folder)) for name, folder in (pair.split("=", 1) for pair in options.dumps)}
        document = {"what": "tests/bench/bench_spectra.py", "commit": provenance.commit(), "text": options.text, "models": models}
        options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(render(json.loads((options.render or options.out).read_text())))


if __name__ == "__main__":
    main()
