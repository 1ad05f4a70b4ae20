# SPDX-License-Identifier: MIT
"""How long the project takes to compile, without ccache and without CUDA, and which units take longest.

bench_build.py [COMMIT...] [--out tests/bench/results/build.json]

Clones each commit (HEAD if none is given), builds the program as scripts/quickstart.sh does, then the rest with the tests.
"""
import argparse
import json
import os
import resource
import subprocess
import tempfile
import time
from pathlib import Path

import provenance

PROJECT = Path(__file__).resolve().parents[2]


def run(*command, cwd=PROJECT):
    environment = {**os.environ, "CCACHE_DISABLE": "1"}
    return subprocess.run(command, cwd=cwd, env=environment, check=True, capture_output=True, text=True).stdout.strip()


def timed(*command, cwd):
    begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    run(*command, cwd=cwd)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": round(time.monotonic() - begun, 1), "processor_seconds": round(processor, 1)}


def units(build):
    """Seconds of each compiled unit, the slowest first, from ninja's log."""
    lines = [line.split("\t") for line in (build / ".ninja_log").read_text().splitlines() if not line.startswith("#")]
    seconds = {line[3]: (int(line[1]) - int(line[0])) / 1000 for line in lines if line[3].endswith(".o")}
    return sorted(seconds.items(), key=lambda item: -item[1])


def measure(commit):
    with tempfile.TemporaryDirectory(prefix="oscar-build-") as name:
        clone = Path(name, "oscar")
        run("git", "clone", "--quiet", PROJECT, clone)
        run("git", "checkout", "--quiet", commit, cwd=clone)
        (clone / ".venv").symlink_to((PROJECT / ".venv").resolve())
        run("cmake", "--preset", "release", "-DOSCAR_CUDA=OFF", "-DOSCAR_TESTS=ON", cwd=clone)
        program = timed("cmake", "--build", "--preset", "release", "--target", "oscar", cwd=clone)
        program["units"] = len(units(clone / "build"))
        everything = timed("cmake", "--build", "--preset", "release", cwd=clone)
        slowest = units(clone / "build")
    everything["units"] = len(slowest) - program["units"]
    return {"commit": commit, "program": program, "tests_after_it": everything,
            "slowest": [{"unit": unit, "seconds": round(seconds, 1)} for unit, seconds in slowest[:10]]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commits", nargs="*", default=["HEAD"])
    parser.add_argument("--out", type=Path, default=PROJECT / "tests/bench/results/build.json")
    options = parser.parse_args()
    machine = provenance.machine()
    rows = [measure(run("git", "rev-parse", "--short", commit)) for commit in options.commits]
    document = {"what": "compile times without ccache and CUDA", "machine": machine,
                "compiler": run("g++", "--version").splitlines()[0], "rows": rows}
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    for row in rows:
        print(f"{row['commit']}: program {row['program']}, tests after it {row['tests_after_it']}")
        for unit in row["slowest"]:
            print(f"  {unit['seconds']:6.1f} s  {unit['unit']}")


if __name__ == "__main__":
    main()
