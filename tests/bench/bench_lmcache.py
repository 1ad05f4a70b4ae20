# SPDX-License-Identifier: MIT
"""What storing a prompt's cache in LMCache costs and saves, by serde, on CPUs:

    bench_lmcache.py --model FOLDER --tokens FILE.npy --set NAME=SET … [--prompt 1536] [--answers 512] [--sequences 4] --out FILE

KLD of answers after a prompt that was stored in chunks of 256 tokens and read back, against the model with nothing stored, and how many times
fewer bytes were stored: of each set by oscar_kv.lmcache, and of LMCache's own serdes, whose TurboQuant runs in Triton's interpreter. Then
GB of bfloat16 a second and core that a serde stores and loads, in chunks of the shape of Qwen3-8B, whose layers have the first set's
first layer in each head; --threads N stores and loads so many chunks at once. LMCache's CacheGen and TurboQuant are written for GPUs,
so their speed here says nothing.
"""
import argparse
import concurrent.futures
import dataclasses
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
import lmcache_chunks as chunks  # noqa: E402
import numpy as np  # noqa: E402
import oscar_kv  # noqa: E402
import provenance  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from oscar_kv import lmcache  # noqa: E402

LAYERS, HEADS = 36, 8  # of Qwen3-8B
PEERS = {"fp8": chunks.fp8, "cachegen": chunks.cachegen, **{f"turboquant_{name}, all layers": chunks.turboquant(f"turboquant_{name}", 0) for name in
         ("k8v4", "4bit_nc", "3bit_nc")}}


def widened(part):
    part = part.to_torch()
    first = next(iter(part.layers.values()))

    def side(of):
        return dataclasses.replace(of, **{name: torch.cat([x[:1]] * HEADS) for name, x in vars(of).items() if isinstance(x, torch.Tensor)})

    model = {"id": "", "num_layers": LAYERS, "num_key_value_heads": HEADS, "head_dim": first.key.rotation.shape[-1]}
    return dataclasses.replace(part, layers={i: oscar_kv.Layer(i, side(first.key), side(first.value)) for i in range(LAYERS)}, manifest={"model": model})


def speed(serializer, deserializer, x, threads):
    """GB of x a second and core: stored, loaded. Three rounds of as many chunks as threads; the fastest counts."""
    sources = [chunks.memory(x) for _ in range(threads)]
    outs = [chunks.memory(serializer.estimate_serialized_size(chunks.layout(x))) for _ in sources]
    backs, of, found = [chunks.memory(torch.zeros_like(x)) for _ in sources], chunks.key(0), []
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        for work, left, right in ((serializer.serialize, sources, outs), (deserializer.deserialize, outs, backs)):
            best = 1e9
            for _ in range(4):
                begin = time.perf_counter()
                list(pool.map(lambda pair: work(*pair, of), zip(left, right)))
                best = min(best, time.perf_counter() - begin)
            found.append(round(x.nbytes / best / 1e9, 4))
    return dict(zip(("store_gb_per_s_and_core", "load_gb_per_s_and_core"), found))


def main():
    parser = argparse.ArgumentParser()
    for name in ("--model", "--tokens", "--out"):
        parser.add_argument(name, required=True, type=Path)
    parser.add_argument("--set", action="append", required=True)
    for name, value in (("--prompt", 1536), ("--answers", 512), ("--sequences", 4), ("--threads", 1)):
        parser.add_argument(name, type=int, default=value)
    parser.add_argument("--peers", default=",".join(PEERS).replace(", all layers", ""))
    options = parser.parse_args()
    result = {"machine": provenance.machine(), "commit": provenance.commit(), "command": " ".join(sys.argv[1:]), "torch": torch.__version__, "serdes": []}
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    config = model.config
    heads, dim = config.num_key_value_heads, getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    ids = torch.from_numpy(np.load(options.tokens))[:options.sequences, :options.prompt + options.answers].long()
    parts = {name: oscar_kv.read_set(path) for name, path in (each.split("=", 1) for each in options.set)}
    stores = {f"{name}, exact {exact}": chunks.by_serde(*[lmcache.SetSerde(part, exact)] * 2) for name, part in parts.items() for exact in (0, 4)}
    stores |= {name: make(options.model, (heads, dim)) for name, make in PEERS.items() if name.split(",")[0] in options.peers.split(",")}
    for name, store in stores.items():
        begin = time.perf_counter()
        kld, ratio = chunks.kld_and_ratio(model, ids, options.prompt, store, heads)
        result["serdes"].append({"serde": name, "kld": round(kld, 6), "ratio": round(ratio, 3)})
        print(result["serdes"][-1], f"{time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
    wide = widened(next(iter(parts.values())))
    x = torch.randn(2, LAYERS, chunks.CHUNK, HEADS * next(iter(wide.layers.values())).key.rotation.shape[-1]).bfloat16()
    from lmcache.v1.distributed.serde import Fp8QuantizationDeserializer, Fp8QuantizationSerializer
    serde = lmcache.SetSerde(wide)
    result["speed"] = {"shape": list(x.shape), "threads": options.threads, "load": provenance.machine()["load_before"],
                       "oscar": speed(serde, serde, x, options.threads),
                       "fp8": speed(Fp8QuantizationSerializer(), Fp8QuantizationDeserializer(), x, options.threads)}
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
