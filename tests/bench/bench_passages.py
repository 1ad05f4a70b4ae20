# SPDX-License-Identifier: MIT
"""What it costs a model to read a passage that it computed elsewhere, packed and as it is:

bench_passages.py --model FILE.gguf --set SET --texts DIR [--device cuda] [--sequences 8] [--needles 24] --out FILE.json

SET is of `oscar fit`, without `--keys after-rope`, DIR what real_model_texts.py wrote. Of each sequence of text the passage is HEAD to HEAD + PASSAGE tokens, and
the next ANSWER tokens are predicted: their KLD from the model that computes everything anew. Of each needle's prompt the passage is all but
the first NEEDLE_HEAD tokens and the last QUESTION, and a needle counts if its whole answer is the most likely. Ways to get the passage's rows:
  in place            computed behind the head, packed, and read where it was
  moved, exact        computed alone, its keys turned to where it is read, nothing packed
  moved               the same, packed
  behind a start      computed behind the first START tokens of the head, whose rows are not kept; packed, moved
  not turned          computed alone, nothing packed, keys left at their positions
  left out            the question follows the head
"""
import argparse
import json
import sys
from pathlib import Path

import numpy
import provenance
import torch
import transformers

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "apps/python"))
import oscar_kv  # noqa: E402

HEAD, PASSAGE, ANSWER, START, NEEDLE_HEAD, QUESTION = 1024, 1024, 512, 16, 512, 64
DOMAINS = ("code", "dialogue", "prose")


class Bench:
    def __init__(self, options):
        self.model = transformers.AutoModelForCausalLM.from_pretrained(options.model.parent, gguf_file=options.model.name, dtype=torch.float32)
        self.model = self.model.eval().to(options.device)
        self.config, self.part = self.model.config, oscar_kv.read_set(options.set, "transformers")

    @torch.no_grad()
    def computed(self, ids, cache=None):
        cache = transformers.DynamicCache() if cache is None else cache
        return cache, self.model(ids.to(self.model.device)[None], past_key_values=cache).logits[0]

    def moved(self, keys, by):
        """Keys (1, heads, tokens, d) at positions further by so many; default RoPE, halves of a head."""
        dim = keys.shape[-1]
        angles = by * self.config.rope_parameters["rope_theta"] ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=keys.device) / dim)
        x, y = keys.double().chunk(2, -1)
        return torch.cat([x * angles.cos() - y * angles.sin(), x * angles.sin() + y * angles.cos()], -1).to(keys.dtype)

    def ways(self, head, passage):
        """Name, and a cache with the head and the passage. The rows of the head are exact."""
        def behind_head(add):
            cache, _ = self.computed(head)
            add(cache)
            return cache

        def exact(turned):
            def add(cache):
                alone, _ = self.computed(passage)
                for i, layer in enumerate(alone.layers):
                    cache.update(self.moved(layer.keys, len(head)) if turned else layer.keys, layer.values, i)
            return add

        def packed(before):
            source, _ = self.computed(torch.cat([before, passage]))
            return oscar_kv.Passage(self.part, self.config, source, len(before)).append_to

        yield "in place", behind_head(packed(head))
        yield "moved, exact", behind_head(exact(True))
        yield "moved", behind_head(packed(head[:0]))
        yield "behind a start", behind_head(packed(head[:START]))
        yield "not turned", behind_head(exact(False))
        yield "left out", behind_head(lambda cache: None)

    def kld(self, ids):
        """By way, of the tokens behind the passage, each given all before it."""
        end = HEAD + PASSAGE
        exact = self.computed(ids)[1][end:-1].log_softmax(-1)
        return {name: float((exact.exp() * (exact - self.computed(ids[end:], cache)[1][:-1].log_softmax(-1))).sum(-1).mean())
                for name, cache in self.ways(ids[:HEAD], ids[HEAD:end])}

    def found(self, ids, answer):
        """By way, whether the whole answer at the end is the most likely; also of the model that computes everything anew."""
        right = lambda logits: bool((logits[-answer - 1:-1].argmax(-1).cpu() == ids[-answer:]).all())
        return {"anew": right(self.computed(ids)[1]), **{name: right(self.computed(ids[-QUESTION:], cache)[1])
                                                         for name, cache in self.ways(ids[:NEEDLE_HEAD], ids[NEEDLE_HEAD:-QUESTION])}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--model", "--set", "--texts", "--out"):
        parser.add_argument(name, required=True, type=Path)
    for name, value in (("--device", "cpu"), ("--commit", ""), ("--gpu", ""), ("--sequences", 8), ("--needles", 24)):
        parser.add_argument(name, type=type(value), default=value)
    options = parser.parse_args()
    bench = Bench(options)
    load = lambda name: numpy.load(options.texts / f"{name}.npy")
    texts = [row for rows in zip(*(load(f"{domain}_measure")[:3] for domain in DOMAINS)) for row in rows][:options.sequences]
    rows = [bench.kld(torch.from_numpy(row[:HEAD + PASSAGE + ANSWER]).long()) for row in texts]
    needles = [bench.found(torch.from_numpy(row).long(), int(answer))
               for row, answer in zip(load("needles_2k")[:options.needles], load("needles_2k_answers"))]
    part = bench.part.manifest["parts"]["coded"]
    result = {"what": "tests/bench/bench_passages.py", "commit": options.commit or provenance.commit(), **provenance.machine(), "gpu": options.gpu,
              "model": options.model.name, "bits": part["codec"]["bits"], "sizes": {"head": HEAD, "passage": PASSAGE, "answer": ANSWER, "start": START, "needle_head": NEEDLE_HEAD, "question": QUESTION},
              "sequences": len(rows), "kld": {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}, "needles": len(needles),
              "found": {name: sum(row[name] for row in needles) for name in (needles[0] if needles else ())}}
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
