# SPDX-License-Identifier: MIT
"""Lets a real model write through the caches of sets that bench_real_model.py fitted, and compares what it writes.

real_model_generate.py --model FILE.gguf --texts DIR --results FILE.json --sets DIR [--device cuda] [--prompts N] [--tokens N]
                       [--only NAME[=FOLDER] ...]
Greedy continuations of 1,024 tokens of text, through transformers and oscar_kv.PackedCache, which reads coded parts, beside transformers' own bfloat16
cache. The figures go into FILE.json under "generation":
  first_difference  mean number of tokens that equal bf16's before the first that does not (at most --tokens)
  agreement         share of positions at which both wrote the same token
  repetition        share of 4-grams of a continuation that stand in it before
  unanswered        share of chat answers that end before their fifth token or do not end within --tokens
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

END, SHORTEST_ANSWER, BATCH = "<|im_end|>", 5, 16


def chat_prompts(tokenizer, rows):
    """A passage in a user's turn; as many tokens in every prompt, so that a batch needs no padding."""
    ids = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]
    head = ids("<|im_start|>user\nHere is a passage:\n\n")
    tail = ids(f"\n\nSay in three sentences what this passage is about.{END}\n<|im_start|>assistant\n")
    passage = rows[:, 1:rows.shape[1] - len(head) - len(tail)]
    repeat = lambda part: numpy.tile(numpy.array(part), (len(rows), 1))
    return numpy.concatenate([repeat(head), passage, repeat(tail)], axis=1)


@torch.no_grad()
def continue_greedily(model, prompts, make_cache, tokens):
    written = []
    for begin in range(0, len(prompts), BATCH):
        batch = torch.from_numpy(prompts[begin:begin + BATCH]).long().to(model.device)
        cache, token, out = make_cache(), batch, []
        for _ in range(tokens):
            logits = model(token, past_key_values=cache, logits_to_keep=1).logits[:, -1]
            token = logits.argmax(-1, keepdim=True)
            out.append(token)
        written.append(torch.cat(out, 1).cpu().numpy())
    return numpy.concatenate(written)


def repetition(row):
    grams = [tuple(row[i:i + 4]) for i in range(len(row) - 3)]
    return 1 - len(set(grams)) / len(grams)


def first_difference(mine, exact):
    different = numpy.flatnonzero(mine != exact)
    return int(different[0]) if len(different) else len(mine)


def is_unanswered(row, end):
    ends = numpy.flatnonzero(row == end)
    return not len(ends) or ends[0] < SHORTEST_ANSWER


def compare(name, written, exact, answers, end, path):
    return {"name": name, "cache": path, "continuations": len(written), "tokens": written.shape[1],
            "first_difference": float(numpy.mean([first_difference(m, e) for m, e in zip(written, exact)])),
            "agreement": float((written == exact).mean()), "repetition": float(numpy.mean([repetition(row) for row in written])),
            "unanswered": float(numpy.mean([is_unanswered(row, end) for row in answers])), "commit": provenance.commit()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--model", "--texts", "--results", "--sets"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--only", nargs="*", help="names of recipes, and folders in --sets of those that the results lack; "
                        "default: all of the coded cache in the results")
    options = parser.parse_args()
    load = {"pretrained_model_name_or_path": options.model.parent, "gguf_file": options.model.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**load)
    model = transformers.AutoModelForCausalLM.from_pretrained(**load, dtype=torch.bfloat16).to(options.device).eval()
    end = tokenizer.convert_tokens_to_ids(END)
    prompts = numpy.load(options.texts / "prompts.npy")[:options.prompts]
    chat = chat_prompts(tokenizer, prompts)
    document = json.loads(options.results.read_text())

    def run(name, make_cache, exact, path):
        model.set_attn_implementation("sdpa" if path == "bf16" else oscar_kv.PACKED_ATTENTION)
        written = continue_greedily(model, prompts, make_cache, options.tokens)
        answers = continue_greedily(model, chat, make_cache, options.tokens)
        row = compare(name, written, written if exact is None else exact, answers, end, path)
        print(json.dumps(row), file=sys.stderr, flush=True)
        print(repr(tokenizer.decode(answers[0])[:300]), file=sys.stderr, flush=True)
        return written, row

    rows = []

    def keep(row):
        """Written at once: a run that is cut short keeps what it has."""
        rows.append(row)
        document["generation"] = rows
        options.results.write_text(json.dumps(document, indent=1) + "\n")

    exact, row = run("bf16", lambda: transformers.DynamicCache(config=model.config), None, "bf16")
    keep(row)
    folders = {recipe["name"]: recipe["set"] for recipe in document["recipes"] if recipe["name"].startswith("`coded`")}
    for wanted in options.only or list(folders):
        name, _, folder = wanted.partition("=")
        part = oscar_kv.read_set(options.sets / (folder or folders[name]))
        keep(run(name, lambda: oscar_kv.PackedCache(part, model.config, exact_prompt=True), exact, "PackedCache")[1])


if __name__ == "__main__":
    main()
