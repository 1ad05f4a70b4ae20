# SPDX-License-Identifier: MIT
"""Times `oscar verify`: the structure checks of sets of 36 layers, and the sample model with every usual method.

bench_verify.py [--binary build/oscar] [--needles 40] [--out tests/bench/results/verify.json]
Run it with .venv/bin/python when nothing else runs: the document keeps the load average, and CPU seconds beside wall time.
"""
import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests/data"
GOLDEN = DATA / "golden/qwen3-2m"


def timed(*command):
    """Wall and CPU seconds of a process that must succeed."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_seconds": round(wall, 2), "cpu_seconds": round(cpu, 2)}


def structure(binary, folder):
    """A set of 36 layers of 8 heads of 128: one rotation a layer and side, and a stretch for each head."""
    dump = folder / "dump"
    subprocess.run([sys.executable, "-B", Path(__file__).parent / "synthetic_dump.py", dump, "--layers", "36", "--tokens", "1024",
                    "--query-heads", "8", "--kv-heads", "8"], check=True)
    found = {}
    for recipe, options in (("oscar", ()), ("stretch", ("--target", "any", "--codec", "minmax"))):
        rotations = folder / recipe
        timed(binary, "fit", "--dump", dump, "--recipe", recipe, "--clip", "0.96,0.92", "--out", rotations, *options)
        runs = [timed(binary, "verify", rotations, "--compare", "none", "--no-record") for _ in range(5)]
        found[recipe] = {"megabytes": round(sum(f.stat().st_size for f in rotations.rglob("*")) / 1e6, 1),
                         **min(runs, key=lambda run: run["wall_seconds"])}
    return found


def sample(binary, folder, needles):
    model = ("--model", DATA / "qwen3-2m")
    rotations, report = folder / "rotations", folder / "report.json"
    timed(binary, "fit", *model, "--recipe", "oscar", "--tokens", GOLDEN / "tokens_calib.npy", "--out", rotations)
    seconds = timed(binary, "verify", rotations, *model, "--tokens", GOLDEN / "tokens_eval.npy", "--sequences", 4,
                    "--needle", GOLDEN / "tokens_passkey.npy", "--needle-answers", GOLDEN / "passkey_answer_len.npy",
                    "--max-needles", needles, "--json", report)
    methods = json.loads(report.read_text())["methods"]
    return {"sequences": "4 of 2048 tokens", "needles": needles, "methods": [m["name"] for m in methods], **seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=ROOT / "build/oscar")
    parser.add_argument("--needles", type=int, default=40)
    parser.add_argument("--out", type=Path, default=ROOT / "tests/bench/results/verify.json")
    options = parser.parse_args()
    load = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="oscar-bench-") as name:
        folder = Path(name)
        document = {"what": "oscar verify", "cores": len(os.sched_getaffinity(0)), "structure_of_36_layers": structure(options.binary, folder),
                    "sample": sample(options.binary, folder, options.needles)}
    document["load_average"] = {"before": [round(x, 1) for x in load], "after": [round(x, 1) for x in os.getloadavg()]}
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(options.out.read_text())


if __name__ == "__main__":
    main()
