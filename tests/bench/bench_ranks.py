# SPDX-License-Identifier: MIT
"""Times one fit by 1, 2, … processes of torchrun, each with a GPU of its own, on one dump in memory; prints and keeps a JSON
document. scripts/gpu/cluster.sh runs it.

bench_ranks.py [--binary build/oscar] [--ranks 1,2] [--layers 40] [--tokens 30000] [--query-heads 96] [--kv-heads 8]
               [--device cuda] [--work /dev/shm] [--repeats 5] [--out FILE]
`seconds` are rank 0's own (--json), from when all ranks are there until the set is written; `wall_seconds` those of the whole
job, torchrun and its Python included. All sets must have the same bytes. Exit status 1 if they do not.
"""
import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.dont_write_bytecode = True
import synthetic_dump  # noqa: E402  (beside this file)

HEAD_DIM = 128


def command_of(ranks, binary):
    if ranks == 1:
        return [binary]
    return [sys.executable, "-m", "torch.distributed.run", "--no-python", "--standalone", "--nproc-per-node", str(ranks), binary]


def fit(options, ranks, work):
    """One run: its report, and its wall time."""
    out, report = work / f"set_{ranks}", work / "fit.json"
    shutil.rmtree(out, ignore_errors=True)
    command = [*command_of(ranks, options.binary), "fit", "--dump", work / "dump", "--recipe", "oscar", "--device",
               options.device, "--out", out, "--quiet", f"--json={report}"]
    begin = time.perf_counter()
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    wall = time.perf_counter() - begin
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return json.loads(report.read_text()), wall


def times_of(options, ranks, work):
    fit(options, ranks, work)  # warms up
    runs = [fit(options, ranks, work) for _ in range(options.repeats)]
    seconds = [report["seconds"]["fit"] + report["seconds"]["writing"] for report, _ in runs]
    return {"seconds": statistics.median(seconds), "all_seconds": [round(each, 4) for each in seconds],
            "parts_of_last": runs[-1][0]["seconds"], "wall_seconds": statistics.median(wall for _, wall in runs),
            "device_of_rank_0": runs[-1][0]["device"]}


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def measure(options, work):
    begin = time.perf_counter()
    synthetic_dump.make(work / "dump", options.layers, options.tokens, options.query_heads, options.kv_heads, HEAD_DIM, 4096,
                        None, 0, options.device, manifest=True)
    torch.cuda.empty_cache()
    gigabytes = options.layers * options.tokens * (options.query_heads + 2 * options.kv_heads) * HEAD_DIM * 2 / 1e9
    result = {"shape": f"{options.layers} layers of {options.query_heads}/{options.kv_heads} heads of {HEAD_DIM}, "
                       f"{options.tokens} tokens, bfloat16", "dump_gb": gigabytes,
              "dump_seconds_to_make": time.perf_counter() - begin, "ranks": {}}
    counts = [int(count) for count in options.ranks.split(",")]
    for count in counts:
        times = result["ranks"][str(count)] = times_of(options, count, work)
        times["gb_per_s"] = gigabytes / times["seconds"]
        times["speedup"] = result["ranks"][str(counts[0])]["seconds"] / times["seconds"]
        times["same_bytes"] = bytes_of(work / f"set_{count}") == bytes_of(work / f"set_{counts[0]}")
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=Path("build/oscar"))
    parser.add_argument("--ranks", default="1,2")
    for name, default in (("layers", 40), ("tokens", 30000), ("query-heads", 96), ("kv-heads", 8), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
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
    sys.exit(0 if all(each["same_bytes"] for each in result["ranks"].values()) else 1)


if __name__ == "__main__":
    main()
