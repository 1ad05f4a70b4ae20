#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""oscar_kv.PackedCache beside bfloat16 caches: bench_cache.py [--json FILE] [--commit HASH] [--gpu TEXT] [OPTION...]

Speed: a model of Qwen3-8B's shape with random weights, bfloat16; rows of random keys and values fill the caches, then the model writes a
token at a time for the whole batch.
  graph_tokens_per_s   steps replayed as CUDA graphs; sets by oscar_kv.DecodeGraph, bfloat16 in place, in room that was there before
  decode_tokens_per_s  steps as transformers makes them: mostly how fast Python launches
  cache_bytes          of the rows at that length; peak_bytes: of all that the GPU held while steps were replayed, weights included
bf16 is what torch chooses, "bf16, flash" without cuDNN. coded has 2.125 bits a value. A way that the GPU has no room for has
"fits": false.
--shape tiny --device cpu tries the script where there is no GPU.
"""
import argparse
import gc
import json
import sys
import time
from pathlib import Path

import torch
import transformers
from transformers.cache_utils import CacheLayerMixin

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "apps/python"))
import oscar_kv  # noqa: E402

SHAPES = {"qwen3-8b": {"hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32, "num_key_value_heads": 8,
                       "head_dim": 128, "vocab_size": 151936},
          "tiny": {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
                   "head_dim": 64, "vocab_size": 200}}
WINDOWS = {"sink": 64, "recent": 256}
WAYS = ("bf16", "bf16, flash", "coded")
CODED_BITS = [4, 4, 3, 3, 3, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 0]  # of 16 blocks of channels: 2 bits a value, and 2 bytes of scales a row
FILL = 1 << 18  # tokens of all sequences that are stored at once


def random_model(options):
    torch.manual_seed(0)
    config = transformers.Qwen3Config(**SHAPES[options.shape], num_hidden_layers=options.layers, max_position_embeddings=1 << 18,
                                      tie_word_embeddings=False)
    with torch.device(options.device):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def random_set(config):
    heads, dim = config.num_key_value_heads, config.head_dim
    bits = torch.tensor(CODED_BITS)[::128 // dim].repeat_interleave(8).expand(heads, dim)

    def side():
        rotation = torch.linalg.qr(torch.randn(heads, dim, dim))[0]
        return oscar_kv.Side(rotation, rotation, None, 2**bits, 4.0 / 2**bits, torch.ones(heads, dim))

    return oscar_kv.SetPart({i: oscar_kv.Layer(i, side(), side()) for i in range(config.num_hidden_layers)}, tuple(WINDOWS.values()))


class InPlaceLayer(CacheLayerMixin):
    """bfloat16 rows in room that was there before; a step writes where the last one wrote and reads all."""

    is_sliding = False

    def __init__(self, room):
        super().__init__()
        self.room, self.length = room, 0

    def lazy_initialization(self, key_states, value_states):
        self.keys, self.values = (x.new_empty(*x.shape[:2], self.room, x.shape[3]) for x in (key_states, value_states))
        self.is_initialized = True

    def update(self, key_states, value_states, *_, **__):
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        first = min(self.length, self.room - key_states.shape[2])
        self.length = first + key_states.shape[2]
        for held, new in ((self.keys, key_states), (self.values, value_states)):
            held[:, :, first:self.length] = new
        return self.keys[:, :, :self.length], self.values[:, :, :self.length]

    def get_seq_length(self):
        return self.length

    def get_mask_sizes(self, query_length):
        return self.length + query_length, 0

    def get_max_length(self):
        return self.room

    get_max_cache_shape = get_max_length


def cache_of(way, part, config, length):
    if way.startswith("bf16"):
        return transformers.Cache(layers=[InPlaceLayer(length) for _ in range(config.num_hidden_layers)])
    return oscar_kv.PackedCache(part, config, path="kernel", exact_prompt=True, max_length=length + 1024)


def bytes_of(cache):
    if isinstance(cache, oscar_kv.PackedCache):
        return cache.nbytes()
    return sum(x.nbytes for layer in cache.layers for x in (layer.keys, layer.values))


def fill(cache, config, batch, length, device):
    """Random rows of so many tokens for each sequence."""
    each = max(FILL // batch, 1)
    rows = torch.randn(2, batch, config.num_key_value_heads, min(each, length), config.head_dim, dtype=torch.bfloat16, device=device)
    for layer in range(config.num_hidden_layers):
        for first in range(0, length, each):
            k, v = rows[:, :, :, :min(each, length - first)]
            cache.update(k, v, layer)


def timed(step, device, most_seconds, most_steps):
    """Seconds of a step."""
    def now():
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    begin, steps = now(), 0
    while steps < most_steps and (steps == 0 or now() - begin < most_seconds):
        for _ in range(min(10, most_steps - steps)):
            step()
            steps += 1
    return (now() - begin) / steps


def in_place_graph(model, token, cache):
    """A step of the model over bfloat16 rows, captured."""
    call = lambda: model(token, past_key_values=cache, logits_to_keep=1, attention_mask={"full_attention": None}).logits
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        token.copy_(call().argmax(-1))
    return graph.replay


@torch.no_grad()
def measure(model, way, part, batch, length, options):
    """length: of the tokens before the first step."""
    device, config = options.device, model.config
    cache = cache_of(way, part, config, length)
    fill(cache, config, batch, length, device)
    token = torch.ones(batch, 1, dtype=torch.long, device=device)

    def by_python():
        token.copy_(model(token, past_key_values=cache, logits_to_keep=1, attention_mask={"full_attention": None}).logits.argmax(-1))

    found = {"cache_bytes": bytes_of(cache), "decode_tokens_per_s": batch / timed(by_python, device, 1, options.steps)}
    if device == "cuda":
        if way.startswith("bf16"):
            step = in_place_graph(model, token, cache)
        else:
            graph = oscar_kv.DecodeGraph(model, cache)
            step = lambda: token.copy_(graph(token).argmax(-1))
            step()
        timed(step, device, 0.3, 20)
        torch.cuda.reset_peak_memory_stats()
        found["graph_tokens_per_s"] = batch / timed(step, device, 1, 200)
        found["peak_bytes"] = torch.cuda.max_memory_allocated()
    return found


def speed(options):
    model = random_model(options)
    config, rows = model.config, []
    part = random_set(config)
    for context in options.contexts:
        for batch in options.batches:
            row = {"context": context, "batch": batch}
            for way in WAYS:
                model.set_attn_implementation("sdpa" if way.startswith("bf16") else oscar_kv.PACKED_ATTENTION)
                torch.backends.cuda.enable_cudnn_sdp(way != "bf16, flash")
                try:
                    row[way] = measure(model, way, part, batch, context, options)
                except torch.OutOfMemoryError:
                    row[way] = {"fits": False}
                gc.collect()
                torch.cuda.empty_cache()
                print(context, batch, way, row[way], flush=True)
            rows.append(row)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", default="")
    parser.add_argument("--gpu", default="")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-8b")
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--contexts", type=int, nargs="*", default=[4096, 32768, 131072])
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--steps", type=int, default=100, help="at most, in a second")
    options = parser.parse_args()
    result = {"gpu": options.gpu, "torch": torch.__version__, "transformers": transformers.__version__,
              "commit": options.commit, "shape": options.shape, "layers": options.layers, "windows": WINDOWS}
    result["speed"] = speed(options)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
