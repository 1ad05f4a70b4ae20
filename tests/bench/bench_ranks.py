# SPDX-License-Identifier: MIT
"""Times one fit by 1, 2, … processes of torchrun, each with a GPU of its own, on one dump in memory; prints and keeps a JSON
document. scripts/gpu/cluster.sh runs it.

bench_ranks.py [--binary build/oscar] [--ranks 1,2] [--layers 40] [--tokens 30000] [--query-heads 96] [--kv-heads 8]
               [--live-model glm-4.7] [--live-layers 3] [--live-tokens 120000] [--device cuda] [--work /dev/shm] [--repeats 5]
               [--out FILE]
--layers: of the dump; 0: none. --live-layers: then a live fit of so many layers of a model's shape, random weights, of which the
ranks share the text; 0: none. --live-model: glm-4.7 (160 experts in float8) or qwen3-8b (dense, bfloat16).
`seconds` are rank 0's own (--json), from when all ranks are there until the set is written; `wall_seconds` those of the whole
job, torchrun and its Python included. All sets must have the same bytes. Exit status 1 if they do not.
"""
import argparse
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy
import torch

sys.dont_write_bytecode = True
import bench_live  # noqa: E402  (beside this file)
import synthetic_dump  # noqa: E402

HEAD_DIM = 128
LIVE = {"glm-4.7": (bench_live.GLM, bench_live.glm_layer, "GLM-4.7's shape, 160 experts in float8"),
        "qwen3-8b": (bench_live.QWEN, bench_live.qwen_layer, "Qwen3-8B's shape, bfloat16")}


def command_of(ranks, binary):
    if ranks == 1:
        return [binary]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    return [sys.executable, "-m", "torch.distributed.run", "--no-python", "--master-port", port, "--nproc-per-node", str(ranks),
            binary]


def fit(options, ranks, work, data):
    """One run: its report, and its wall time."""
    out, report = work / f"set_{ranks}", work / "fit.json"
    shutil.rmtree(out, ignore_errors=True)
    command = [*command_of(ranks, options.binary), "fit", *data, "--recipe", "oscar", "--device", options.device,
               "--out", out, "--quiet", f"--json={report}"]
    begin = time.perf_counter()
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    wall = time.perf_counter() - begin
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return json.loads(report.read_text()), wall


def times_of(options, ranks, work, data, repeats):
    fit(options, ranks, work, data)  # warms up
    runs = [fit(options, ranks, work, data) for _ in range(repeats)]
    seconds = [report["seconds"]["fit"] + report["seconds"]["writing"] for report, _ in runs]
    return {"seconds": statistics.median(seconds), "all_seconds": [round(each, 4) for each in seconds],
            "parts_of_last": runs[-1][0]["seconds"], "wall_seconds": statistics.median(wall for _, wall in runs),
            "device_of_rank_0": runs[-1][0]["device"]}


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def by_ranks(options, work, data, repeats):
    """Times by number of ranks; the sets are compared with that of the first."""
    counts = [int(count) for count in options.ranks.split(",")]
    result = {}
    for count in counts:
        times = result[str(count)] = times_of(options, count, work, data, repeats)
        times["speedup"] = result[str(counts[0])]["seconds"] / times["seconds"]
        times["same_bytes"] = bytes_of(work / f"set_{count}") == bytes_of(work / f"set_{counts[0]}")
    return result


def measure_dump(options, work):
    begin = time.perf_counter()
    synthetic_dump.make(work / "dump", options.layers, options.tokens, options.query_heads, options.kv_heads, HEAD_DIM, 4096,
                        None, 0, options.device, manifest=True)
    torch.cuda.empty_cache()
    made = time.perf_counter() - begin
    gigabytes = options.layers * options.tokens * (options.query_heads + 2 * options.kv_heads) * HEAD_DIM * 2 / 1e9
    ranks = by_ranks(options, work, ["--dump", work / "dump", "--max-tokens", "0"], options.repeats)
    shutil.rmtree(work / "dump")
    for times in ranks.values():
        times["gb_per_s"] = gigabytes / times["seconds"]
    return {"shape": f"{options.layers} layers of {options.query_heads}/{options.kv_heads} heads of {HEAD_DIM}, "
                     f"{options.tokens} tokens, bfloat16", "dump_gb": gigabytes, "dump_seconds_to_make": made, "ranks": ranks}


def measure_live(options, work):
    (config, make_layer, shape), tokens = LIVE[options.live_model], work / "tokens.npy"
    bench_live.write_model(work / "model", config, make_layer(), options.live_layers)
    generator = numpy.random.default_rng(0)
    numpy.save(tokens, generator.integers(0, config["vocab_size"], options.live_tokens, dtype=numpy.int32))
    data = ["--model", work / "model", "--tokens", tokens, "--max-tokens", "0"]
    ranks = by_ranks(options, work, data, min(options.repeats, 3))
    return {"shape": f"{options.live_layers} layers of {shape}, {options.live_tokens} tokens", "ranks": ranks}


def measure(options, work):
    result = {"dump": measure_dump(options, work)} if options.layers else {}
    if options.live_layers:
        result["live"] = measure_live(options, work)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=Path("build/oscar"))
    parser.add_argument("--ranks", default="1,2")
    for name, default in (("layers", 40), ("tokens", 30000), ("query-heads", 96), ("kv-heads", 8), ("repeats", 5),
                          ("live-layers", 3), ("live-tokens", 120000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--live-model", choices=LIVE, default="glm-4.7")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--work", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--commit", default="")
    parser.add_argument("--gpu", default="")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.binary = options.binary.resolve()
    work = Path(tempfile.mkdtemp(prefix="oscar-ranks-", dir=options.work))
    try:
        result = {"commit": options.commit, "gpu": options.gpu, **measure(options, work)}
    finally:
        shutil.rmtree(work)
    text = json.dumps(result, indent=1) + "\n"
    if options.out:
        options.out.write_text(text)
    print(text, end="")
    sets = [times for part in ("dump", "live") for times in result.get(part, {}).get("ranks", {}).values()]
    sys.exit(0 if all(each["same_bytes"] for each in sets) else 1)


if __name__ == "__main__":
    main()
