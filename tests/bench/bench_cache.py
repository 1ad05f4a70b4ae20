#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""oscar_kv.Int2Cache beside the bfloat16 cache of transformers: bench_cache.py [--json FILE] [--commit HASH] [--gpu TEXT] [OPTION...]

Speed: a model of Qwen3-8B's shape with fewer layers and random weights, bfloat16, a random rotation set; a prompt in one
pass (the second one is timed), then a token at a time for the whole batch.
  decode_tokens_per_s  wall time of steps as transformers makes them: mostly how fast Python launches
  gpu_ms_per_step      what the GPU itself worked of that
  graph_tokens_per_s   wall time of one step that is captured as a CUDA graph and replayed: a server's speed at this context
  cache_bytes          after the prompt
bf16 is what torch chooses, "bf16, flash" without cuDNN, which plans anew for every length of a cache that grows.
Fidelity: the KL divergence of sets of the sample model through the cache beside what `oscar verify` finds for them.
Exit status 1 if one differs by more than 5 %. --shape tiny --device cpu tries the script where there is no GPU.
"""
import argparse
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import transformers

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "apps/python"))
import oscar_kv  # noqa: E402

SAMPLE, GOLDEN = PROJECT / "tests/data/qwen3-2m", PROJECT / "tests/data/golden/qwen3-2m"
SHAPES = {"qwen3-8b": {"hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32, "num_key_value_heads": 8,
                       "head_dim": 128, "vocab_size": 151936},
          "tiny": {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
                   "head_dim": 64, "vocab_size": 200}}
WINDOWS = {"sink": 64, "recent": 256}
WAYS = {"bf16": "sdpa", "bf16, flash": "sdpa", "int2 kernel": oscar_kv.INT2_ATTENTION, "int2 torch": oscar_kv.INT2_ATTENTION}


def random_model(options):
    torch.manual_seed(0)
    config = transformers.Qwen3Config(**SHAPES[options.shape], num_hidden_layers=options.layers, max_position_embeddings=40960,
                                      tie_word_embeddings=False)
    with torch.device(options.device):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def random_set(config):
    def side(clip):
        rotation = torch.linalg.qr(torch.randn(1, config.head_dim, config.head_dim))[0]
        return oscar_kv.Side(rotation, rotation, None, clip, None, None)

    manifest = {"codec": {"name": "minmax", "levels": [4, 4], "group_size": 0}, "windows": WINDOWS}
    layers = {i: oscar_kv.Layer(i, side(0.96), side(0.92)) for i in range(config.num_hidden_layers)}
    return oscar_kv.RotationSet(manifest, layers)


def cache_of(way, rotations, config):
    if way.startswith("bf16"):
        return transformers.DynamicCache(config=config)
    return oscar_kv.Int2Cache(rotations, config, path=way.removeprefix("int2 "), exact_prompt=True)


def bytes_of(cache):
    if isinstance(cache, oscar_kv.Int2Cache):
        return cache.nbytes()
    return sum(x.nbytes for layer in cache.layers for x in (layer.keys, layer.values))


def now(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def timed(step, device, most_seconds, most_steps):
    """Seconds of a step."""
    begin, steps = now(device), 0
    while steps < most_steps and (steps == 0 or now(device) - begin < most_seconds):
        for _ in range(min(10, most_steps - steps)):
            step()
            steps += 1
    return (now(device) - begin) / steps


def gpu_ms_per_step(step, steps=8):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profile.key_averages()) / 1000 / steps


def graph_seconds(step):
    """Of a step that is captured at the present length; None if it cannot be."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            step()
    except RuntimeError as error:
        print("no graph:", str(error).splitlines()[0], file=sys.stderr)
        torch.cuda.synchronize()
        return None
    timed(graph.replay, "cuda", 1, 20)
    return timed(graph.replay, "cuda", 2, 200)


def next_of(model, tokens, cache):
    """Without a mask, which transformers would make while a graph is captured."""
    out = model(tokens, past_key_values=cache, logits_to_keep=1, attention_mask={"full_attention": None})
    return out.logits[:, -1:].argmax(-1)


@torch.no_grad()
def measure(model, make_cache, prompt, options):
    device, first = options.device, 0
    for _ in range(2):
        cache, token = make_cache(), None  # the last one's memory is free again
        begin = now(device)
        token = next_of(model, prompt, cache)
        first = now(device) - begin
    found = {"prefill_tokens_per_s": prompt.numel() / first, "cache_bytes": bytes_of(cache)}

    def step():
        token.copy_(next_of(model, token, cache))

    timed(step, device, 1, options.steps)
    found["decode_tokens_per_s"] = len(prompt) / timed(step, device, 3, options.steps)
    if device == "cuda":
        found["gpu_ms_per_step"] = gpu_ms_per_step(step)
        read = [vars(layer).copy() for layer in cache.layers]  # a replay reads what the step before it left
        seconds = graph_seconds(step) if getattr(cache, "path", "kernel") == "kernel" else None
        del read
        found["graph_tokens_per_s"] = seconds and len(prompt) / seconds
    return found | {"path": cache.path} if isinstance(cache, oscar_kv.Int2Cache) else found


def speed(options):
    model = random_model(options)
    rotations, rows = random_set(model.config), []
    for context in options.contexts:
        for batch in options.batches:
            prompt = torch.randint(model.config.vocab_size, (batch, context), device=options.device)
            row = {"context": context, "batch": batch}
            for way, attention in WAYS.items():
                model.set_attn_implementation(attention)
                torch.backends.cuda.enable_cudnn_sdp(way != "bf16, flash")
                row[way] = measure(model, lambda way=way: cache_of(way, rotations, model.config), prompt, options)
                print(context, batch, way, row[way], flush=True)
            rows.append(row)
    return rows


@torch.no_grad()
def kld_by_cache(folder, ids, windows, options):
    rotations = oscar_kv.read_set(folder)
    rotations = dataclasses.replace(rotations, manifest=rotations.manifest | {"windows": windows})
    model = transformers.AutoModelForCausalLM.from_pretrained(SAMPLE, dtype=torch.float32).eval().to(options.device)
    ids = torch.from_numpy(ids).long().to(options.device)
    exact = model(ids).logits.double().log_softmax(-1)
    model.set_attn_implementation(oscar_kv.INT2_ATTENTION)
    cache = oscar_kv.Int2Cache(rotations, model.config, path="kernel")
    found = model(ids, past_key_values=cache).logits.double().log_softmax(-1)
    return float((exact.exp() * (exact - found)).sum(-1)[:, :-1].mean())


def fidelity(name, options):
    windows, ids = {"sink": 16, "recent": 64}, np.load(GOLDEN / "tokens_eval.npy")[:4, :options.fidelity_tokens]
    folder = PROJECT / "zoo/sample/qwen3-2m" / name
    with tempfile.TemporaryDirectory() as work:
        np.save(Path(work, "tokens.npy"), ids)
        report = oscar_kv.verify(folder, model=SAMPLE, tokens=Path(work, "tokens.npy"), compare="none", record=False,
                                 default_limits=False, **windows)
    expected, = (method["model"]["kld_mean"] for method in report["methods"] if method["kind"] == "this")
    found = kld_by_cache(folder, ids, windows, options)
    row = {"set": name, "positions": ids.size, "kld_verify": expected, "kld_cache_kernel": found, "ratio": found / expected}
    print(row, flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", default="")
    parser.add_argument("--gpu", default="")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-8b")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--contexts", type=int, nargs="*", default=[4096, 32768])
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--steps", type=int, default=100, help="at most, in 3 s")
    parser.add_argument("--fidelity-tokens", type=int, default=1024)
    options = parser.parse_args()
    result = {"gpu": options.gpu, "torch": torch.__version__, "transformers": transformers.__version__,
              "commit": options.commit, "shape": options.shape, "layers": options.layers, "windows": WINDOWS}
    result["fidelity"] = [fidelity(name, options) for name in ("latest", "lsq")]
    result["speed"] = speed(options)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(any(abs(row["ratio"] - 1) > 0.05 for row in result["fidelity"]))


if __name__ == "__main__":
    main()
