# SPDX-License-Identifier: MIT
"""What other processors would find, on this one.

bench_processors.py [--only CORETYPE,CAPABILITY...] [--skip-emulated] [--add] [--build build]
                    [--out tests/bench/results/processors.json]

Figures: the tests labelled "figures" (they run a model through libtorch, or compare with numpy), under each kind of kernels
that OpenBLAS (in numpy) and libtorch can be told to take, as far as this processor can run them.
Sets: the hashes of tests/cli/fit/same_bytes_test.py under each of those, and under processors that qemu-user emulates.
"""
import argparse
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import provenance

PROJECT = Path(__file__).resolve().parents[2]
CORE_TYPES = {"Haswell": "avx2", "Zen": "avx2", "SkylakeX": "avx512f"}
CAPABILITIES = {"default": "sse2", "avx2": "avx2", "avx512": "avx512f"}
EMULATED = ("Nehalem", "Haswell", "EPYC")  # without AVX; Intel's and AMD's with AVX2 and FMA


def settings(flags):
    for core, capability in itertools.product(CORE_TYPES, CAPABILITIES):
        if {CORE_TYPES[core], CAPABILITIES[capability]} <= flags:
            yield {"OPENBLAS_CORETYPE": core, "ATEN_CPU_CAPABILITY": capability}


def figures(build, setting):
    done = subprocess.run(["ctest", "--test-dir", str(build), "-L", "figures", "-j", str(os.cpu_count())], capture_output=True,
                          text=True, env={**os.environ, **setting})
    if (total := re.search(r"tests passed.* out of (\d+)", done.stdout)) is None:
        sys.exit(f"ctest ran nothing in {build}:\n{done.stdout[-1000:]}{done.stderr[-1000:]}")
    failed = re.findall(r"^\s*\d+ - (.+?) \((?:Failed|Timeout)\)", done.stdout, re.M)
    skipped = re.findall(r"^\s*\d+ - (.+?) \(Skipped\)", done.stdout, re.M)
    return {**setting, "tests": int(total[1]), "failed": failed, "skipped": skipped}


def same_set(build, environment):
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-B", str(PROJECT / "tests/cli/fit/same_bytes_test.py")], capture_output=True,
                          text=True, env={**os.environ, "OSCAR_BINARY": str(build / "oscar"), **environment})
    return {**environment, "same_bytes": done.returncode == 0, "seconds": round(time.monotonic() - begun),
            **({} if done.returncode == 0 else {"output": done.stderr[-600:]})}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=PROJECT / "build")
    parser.add_argument("--out", type=Path, default=PROJECT / "tests/bench/results/processors.json")
    parser.add_argument("--only", nargs="*", help="settings for the figures, such as Zen,avx2; all without it")
    parser.add_argument("--add", action="store_true", help="to what OUT has of other machines")
    parser.add_argument("--skip-emulated", action="store_true")
    options = parser.parse_args()
    build = options.build.resolve()
    machine, flags = provenance.machine(), provenance.processor()[1]
    sets = [same_set(build, setting) for setting in settings(flags)]
    if not options.skip_emulated:
        qemu = shutil.which("qemu-x86_64") or sys.exit("qemu-x86_64 is not here: apt-get install qemu-user")
        sets += [same_set(build, {"OSCAR_RUN_UNDER": f"{qemu} -cpu {model}", "OSCAR_FITS": "1"}) for model in EMULATED]
    chosen = [setting for setting in settings(flags)
              if options.only is None or ",".join(setting.values()) in options.only]
    run = {"machine": machine, "commit": provenance.commit(), "sets": sets,
           "figures": [figures(build, setting) for setting in chosen]}
    runs = json.loads(options.out.read_text())["runs"] if options.add else []
    document = {"what": "sets and figures under other kernels and on other processors", "runs": [*runs, run]}
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(run, indent=1))
    return 0 if all(row["same_bytes"] for row in sets) and not any(row["failed"] for row in run["figures"]) else 1


if __name__ == "__main__":
    sys.exit(main())
