#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A set in a vLLM in this process: tokens that its cache holds, and how fast it decodes. bench_vllm_cuda.py --model DIR [OPTION...]

DIR: a checkpoint, or with --dummy its configuration alone. A row of JSON for each batch of --work, BATCHxTOKENS, is printed and appended to
--out. Run it once for each cache (--set SET, --kv fp8, neither for bfloat16), in the environment of vLLM with this package installed, or
on PYTHONPATH. Prompts have random tokens; steps are made by Python unless --graphs asks for others.
"""
import argparse
import json
import os
import time

import numpy as np

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", required=True)
parser.add_argument("--dummy", action="store_true", help="random weights")
parser.add_argument("--set", default="", help="what OSCAR_KV_SET shall name")
parser.add_argument("--kv", default="auto", help="vLLM's kv_cache_dtype")
parser.add_argument("--graphs", choices=("none", "decode", "default"), default="none",
                    help="decode: CUDA graphs of decode steps, without compilation; default: vLLM's, with it")
parser.add_argument("--ranks", type=int, default=1, help="GPUs that share the heads")
parser.add_argument("--cache-gib", type=float, default=50, help="on each GPU")
parser.add_argument("--length", type=int, default=32768, help="of the longest request")
parser.add_argument("--work", default="1x32000,32x8000,8x32000")
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--out", default=os.devnull)
options = parser.parse_args()
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", OSCAR_KV_SET=options.set)
if not options.set:
    del os.environ["OSCAR_KV_SET"]

import torch  # noqa: E402
import vllm  # noqa: E402
from vllm.sampling_params import RequestOutputKind  # noqa: E402

ON_GPU = torch.cuda.is_available()


def say(**row):
    text = json.dumps({"set": options.set, "kv": options.kv, "graphs": options.graphs, "ranks": options.ranks, **row})
    print(text, flush=True)
    with open(options.out, "a", encoding="utf-8") as out:
        out.write(text + "\n")


def start():
    batches = [int(work.split("x")[0]) for work in options.work.split(",")]
    arguments = {"model": options.model, "dtype": "bfloat16", "skip_tokenizer_init": True, "max_model_len": options.length,
                 "max_num_seqs": max(64, *batches), "max_num_batched_tokens": options.length, "kv_cache_dtype": options.kv,
                 "enforce_eager": options.graphs == "none", "tensor_parallel_size": options.ranks}
    if options.graphs == "decode":
        arguments["compilation_config"] = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
    if options.dummy:
        arguments["load_format"] = "dummy"
    if ON_GPU:
        arguments |= {"kv_cache_memory_bytes": int(options.cache_gib * 2**30), "gpu_memory_utilization": 0.05}
    else:
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(max(1, int(options.cache_gib)))
    return vllm.LLM(**arguments).llm_engine


def now():
    if ON_GPU:
        torch.cuda.synchronize()
    return time.perf_counter()


def decode(engine, batch, length):
    """Requests of random prompts; all run before steps are timed."""
    rng, vocabulary = np.random.default_rng(length), engine.vllm_config.model_config.get_vocab_size()
    sampling = vllm.SamplingParams(max_tokens=options.length - length - 1, temperature=0, ignore_eos=True, detokenize=False,
                                   output_kind=RequestOutputKind.DELTA)
    begin, names, begun = now(), [f"{batch}x{length}-{i}" for i in range(batch)], set()
    for name in names:
        engine.add_request(name, {"prompt_token_ids": rng.integers(0, vocabulary, length).tolist()}, sampling)

    def step():
        outputs = engine.step()
        begun.update(each.request_id for each in outputs)
        return sum(len(each.outputs[0].token_ids) for each in outputs)

    while len(begun) < batch and now() - begin < 120:
        step()
    first = now() - begin
    row = {"batch": batch, "prompt": length, "running": len(begun), "prompts_s": first}
    if len(begun) == batch:
        for _ in range(6):
            step()
        begin = now()
        made = sum(step() for _ in range(options.steps))
        seconds = now() - begin
        row |= {"tokens_per_s": made / seconds, "ms_per_step": 1000 * seconds / options.steps}
    engine.abort_request(names)
    while engine.has_unfinished_requests():
        engine.step()
    say(**row)


def main():
    engine = start()
    cache, layers = engine.vllm_config.cache_config, engine.vllm_config.compilation_config.static_forward_context.values()
    # Layers of several ranks are in other processes.
    if options.set and options.ranks == 1 and not any(type(getattr(layer, "impl", None)).__name__ == "PackedImpl" for layer in layers):
        raise SystemExit("vLLM does not serve the set: install oscar_kv, whose entry point tells vLLM of it")
    say(vllm=vllm.__version__, torch=torch.__version__, gpu=torch.cuda.get_device_name() if ON_GPU else "", cache_gib=options.cache_gib,
        kv_tokens=cache.num_gpu_blocks * cache.block_size)
    for work in options.work.split(","):
        decode(engine, *map(int, work.split("x")))


if __name__ == "__main__":
    main()
