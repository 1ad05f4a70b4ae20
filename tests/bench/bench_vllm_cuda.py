#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A set in vLLM on a GPU: tokens that its cache holds, and how fast it decodes. bench_vllm_cuda.py --model DIR [OPTION...]

DIR: a checkpoint, or with --dummy its configuration alone. A row of JSON for each batch of --work, BATCHxTOKENS, is printed and appended to
--out. Run it once for each cache (--set SET, --kv fp8, neither for bfloat16), in the environment of vLLM with this package installed. The
engine is a process of its own, as vLLM serves. Prompts have random tokens. A row's time is that of --steps more tokens of each request: the
difference of two calls whose prompts are there, three times; prompts_s is that of the first call, and again_s of such a call, with 8 tokens.
"""
import argparse
import json
import os
import statistics
import time
from importlib.metadata import entry_points

import numpy as np

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", required=True)
parser.add_argument("--dummy", action="store_true", help="random weights")
parser.add_argument("--set", default="", help="what OSCAR_KV_SET shall name")
parser.add_argument("--kv", default="auto", help="vLLM's kv_cache_dtype")
parser.add_argument("--graphs", choices=("none", "decode", "default"), default="default",
                    help="decode: CUDA graphs of decode steps, without compilation; default: vLLM's, with it")
parser.add_argument("--ranks", type=int, default=1, help="GPUs that share the heads")
parser.add_argument("--cache-gib", type=float, default=50, help="on each GPU")
parser.add_argument("--length", type=int, default=32768, help="of the longest request")
parser.add_argument("--work", default="1x32000,32x8000")
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--out", default=os.devnull)
options = parser.parse_args()
os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
if options.set:
    os.environ["OSCAR_KV_SET"] = options.set
    if not any(found.value.startswith("oscar_kv.") for found in entry_points(group="vllm.general_plugins")):
        raise SystemExit("vLLM does not serve the set: install oscar_kv, whose entry point tells vLLM of it")

import torch  # noqa: E402
import vllm  # noqa: E402


def say(**row):
    text = json.dumps({"set": options.set, "kv": options.kv, "graphs": options.graphs, "ranks": options.ranks, **row})
    print(text, flush=True)
    with open(options.out, "a", encoding="utf-8") as out:
        out.write(text + "\n")


def start():
    batches = [int(work.split("x")[0]) for work in options.work.split(",")]
    arguments = {"model": options.model, "dtype": "bfloat16", "skip_tokenizer_init": True, "max_model_len": options.length,
                 "max_num_seqs": max(64, *batches), "max_num_batched_tokens": options.length, "kv_cache_dtype": options.kv,
                 "enforce_eager": options.graphs == "none", "tensor_parallel_size": options.ranks,
                 "kv_cache_memory_bytes": int(options.cache_gib * 2**30)}
    if options.graphs == "decode":
        arguments["compilation_config"] = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
    if options.dummy:
        arguments["load_format"] = "dummy"
    return vllm.LLM(**arguments)


def decode(model, batch, length):
    vocabulary = model.llm_engine.vllm_config.model_config.get_vocab_size()
    prompts = [{"prompt_token_ids": ids} for ids in np.random.default_rng(length).integers(0, vocabulary, (batch, length)).tolist()]

    def seconds(tokens):
        sampling = vllm.SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False)
        begin = time.perf_counter()
        model.generate(prompts, sampling, use_tqdm=False)
        return time.perf_counter() - begin

    first, again, rates = seconds(8), [], []
    for _ in range(3):
        again.append(seconds(8))
        rates.append(batch * options.steps / (seconds(8 + options.steps) - again[-1]))
    say(batch=batch, prompt=length, tokens_per_s=round(statistics.median(rates), 1), all=[round(rate, 1) for rate in sorted(rates)],
        prompts_s=round(first, 2), again_s=round(statistics.median(again), 2))


def main():
    model = start()
    cache = model.llm_engine.vllm_config.cache_config
    say(vllm=vllm.__version__, torch=torch.__version__, gpu=torch.cuda.get_device_name(), cache_gib=options.cache_gib,
        kv_tokens=cache.num_gpu_blocks * cache.block_size)
    for work in options.work.split(","):
        decode(model, *map(int, work.split("x")))


if __name__ == "__main__":
    main()
