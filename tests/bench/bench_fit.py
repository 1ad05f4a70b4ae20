# SPDX-License-Identifier: MIT
"""Times `oscar fit` against the published fitter on one synthetic dump of real size; prints and keeps a JSON document.

bench_fit.py --published compute_kv_rotation.py [--spectra FOLDER] [--threads N] [--repeats 3] [--layers 4] [--tokens 30000]
             [--binary build/oscar] [--work FOLDER] [--out tests/bench/results/fit.json]
Run it with .venv/bin/python, which the published fitter also runs on, when nothing else runs. The published fitter
(rotation/compute_kv_rotation.py of FutureMLS-Lab/OSCAR) is not part of this project. Both read the same files, warm in the
page cache, on the same cores, by turns; times are whole processes. It fits no clip ratios, so the comparison gives `oscar`
constants, and the clip fit is timed apart as the difference to them.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

sys.dont_write_bytecode = True
import provenance  # noqa: E402  (beside this file)
import synthetic_dump  # noqa: E402

ROOT = Path(__file__).parents[2]


def watch_peak(process, peak):
    """Keeps the largest VmHWM of a process in peak[0], in MB. Its own: ru_maxrss would count this script before exec."""
    while process.returncode is None:
        try:
            with open(f"/proc/{process.pid}/status", encoding="ascii") as status:
                peak[0] = max([peak[0]] + [int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM")])
        except (OSError, ProcessLookupError):
            return
        time.sleep(0.005)


def timed(command, threads):
    """Seconds, and peak resident memory in MB, of a process that must succeed."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    with tempfile.TemporaryFile() as log:
        begin = time.perf_counter()
        process = subprocess.Popen([str(part) for part in command], stdout=log, stderr=log, env=environment)
        peak = [0.0]
        watcher = threading.Thread(target=watch_peak, args=(process, peak))
        watcher.start()
        _, status = os.waitpid(process.pid, 0)
        seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        watcher.join()
        if process.returncode != 0:
            log.seek(0)
            sys.exit(f"{' '.join(map(str, command))}: exit status {process.returncode}\n{log.read().decode()}")
    return {"seconds": seconds, "peak_rss_mb": peak[0]}


def summary(runs):
    return {"median_seconds": statistics.median(run["seconds"] for run in runs),
            "seconds": [round(run["seconds"], 4) for run in runs],
            "peak_rss_mb": round(max(run["peak_rss_mb"] for run in runs), 1)}


def eigenvalue_difference(ours, theirs):
    """Largest relative difference of eigenvalues over both sides and all layers; relative to each layer's largest too."""
    worst, worst_scaled = 0.0, 0.0
    for side in ("k", "v"):
        pair = [torch.load(next(folder.glob(f"{side}_rotation*.pt")), weights_only=True)["layers"] for folder in (ours, theirs)]
        assert sorted(map(int, pair[0])) == sorted(map(int, pair[1])), "the two fitted different layers"
        for layer in pair[0]:
            a, b = (layers[layer]["eigenvalues"].double() for layers in pair)
            worst = max(worst, ((a - b).abs() / b.abs()).max().item())
            worst_scaled = max(worst_scaled, ((a - b).abs().max() / b.abs().max()).item())
    return {"relative": worst, "relative_to_largest": worst_scaled}


def fit_command(options, dump, out, clip):
    shutil.rmtree(out, ignore_errors=True)
    return [options.binary, "fit", "--recipe", "oscar", "--clip", clip, "--dump", dump, "--out", out,
            "--threads", options.threads, "--device", "cpu", "--format", "pt", "--quiet"]


def compare(options, dump, work):
    ours, theirs = work / "ours", work / "theirs"
    published = [sys.executable, options.published, "--dump-path", dump, "--output-dir", theirs, "--head-dim", "128",
                 "--method", "qqt_sst", "--composition", "r_h_pbr"]
    runs = {"oscar": [], "published": [], "with_clip_fit": []}
    for _ in range(options.repeats):
        runs["oscar"].append(timed(fit_command(options, dump, ours, "0.96,0.92"), options.threads))
        runs["published"].append(timed(published, options.threads))
    for _ in range(options.repeats):
        runs["with_clip_fit"].append(timed(fit_command(options, dump, work / "clip", "auto"), options.threads))
    results = {name: summary(values) for name, values in runs.items()}
    fixed, clip = results["oscar"]["median_seconds"], results["with_clip_fit"]["median_seconds"]
    return {**results,
            "times_faster": results["published"]["median_seconds"] / fixed,
            "seconds_per_layer": fixed / options.layers,
            "clip_fit_seconds_per_layer": (clip - fixed) / options.layers,
            "eigenvalue_difference": eigenvalue_difference(ours, theirs)}


def help_time(binary):
    """Median milliseconds of `oscar --help` over 21 starts, the first not counted."""
    times = []
    for _ in range(22):
        begin = time.perf_counter()
        subprocess.run([binary, "--help"], stdout=subprocess.DEVNULL, check=True)
        times.append((time.perf_counter() - begin) * 1000)
    return statistics.median(times[1:])


def machine():
    return {**provenance.machine(), "commit": provenance.commit(), "torch": torch.__version__}


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--published", type=Path, required=True)
    parser.add_argument("--binary", type=Path, default=ROOT / "build/oscar")
    parser.add_argument("--spectra", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "tests/bench/results/fit.json")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    for name, default in (("repeats", 3), ("layers", 4), ("tokens", 30000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    for path in (options.published, options.binary):
        if not path.is_file():
            sys.exit(f"{path} is missing")
    return options


def main():
    options = parse_options()
    result = {"machine": machine(), "threads": options.threads, "layers": options.layers, "tokens": options.tokens,
              "query_heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bfloat16", "seed": 0,
              "spectra": options.spectra.name if options.spectra else "power law"}
    with tempfile.TemporaryDirectory(dir=options.work, prefix="oscar-bench-") as folder:
        dump = Path(folder, "dump")
        synthetic_dump.make(dump, options.layers, options.tokens, 32, 8, 128, 4096, options.spectra, 0)
        result.update(compare(options, dump, Path(folder)))
    result["help_milliseconds"] = help_time(options.binary)
    text = json.dumps(result, indent=1)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
